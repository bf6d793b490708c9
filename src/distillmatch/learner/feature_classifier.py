"""A classifier on frozen features: it keeps statistics of the classes and no image.

Features x are first compressed, z = sqrt(x) if none is negative. Of each class c the state keeps
the number and the mean of its labeled images and, apart from them, of the unlabeled images taken
for it; of all classes together, the largest principal axes of the scatter within classes, S.

    mean         m_c = (n_c a_c + u_c b_c) / (n_c + u_c),   labeled n_c, a_c; unlabeled u_c <= n_c
    covariance   C = (1 - s) S / f + s t I,                 t = tr(S) / (f d), f degrees of freedom
    logits       (z - g)' C^-1 (m_c - g) - (m_c - g)' C^-1 (m_c - g) / 2, over a temperature
    familiarity  max_c cos(z - g, m_c - g),                 g the mean of the class means

Labeled images are scored as if they had not been learned, exactly and without folds: class means
and C lose the image by a rank-one update. The temperature T and the familiarity that a share of the
known images reaches come from these scores.

Unlabeled images that are familiar move the class means by their probabilities. They never count
for more than the labeled images of the class do, whatever their number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SHRINKAGE = 0.8
"""Share s of the identity in the covariance."""
AXES = 128
"""Principal axes of the scatter that are kept."""
FAMILIAR = 0.5
"""Share of known images that are as familiar as an unlabeled image must be to be learned."""
ROUNDS = 5
SCORES = 4096
"""Scores of held-out images that are kept, evenly along their order."""
_NEVER = -1e9


class Judgement(NamedTuple):
    """What was made of the unlabeled images of a task."""

    pseudo_labels: NDArray[np.int64]
    accepted: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class FeatureClassifier:
    """What is known of classes by the features of a frozen network: statistics, no images."""

    tensors: Mapping[str, NDArray[np.float32]]

    @classmethod
    def empty(cls, dimension: int) -> "FeatureClassifier":
        """Return a classifier of features of this dimension that knows no class."""
        return cls(
            {
                "labeled": np.zeros(0, np.float32),
                "labeled_means": np.zeros((0, dimension), np.float32),
                "unlabeled": np.zeros(0, np.float32),
                "unlabeled_means": np.zeros((0, dimension), np.float32),
                "scatter_axes": np.zeros((0, dimension), np.float32),
                "scatter": np.zeros(2, np.float32),  # its trace and its degrees of freedom
                "temperature": np.ones(1, np.float32),
                "power": np.ones(1, np.float32),
                "scores": np.zeros(0, np.float32),
            }
        )

    @property
    def classes(self) -> int:
        """The number of classes known."""
        return len(self.tensors["labeled"])

    @property
    def dimension(self) -> int:
        """The number of features of an image."""
        return int(self.tensors["labeled_means"].shape[1])

    @property
    def bytes(self) -> int:
        """The size of the state."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def after(
        self,
        features: NDArray[np.float32],
        labels: NDArray[np.int64],
        classes: int,
        unlabeled: NDArray[np.float32],
        seed: int,
    ) -> tuple["FeatureClassifier", Judgement]:
        """Return what is known after a task, and what was made of its unlabeled images."""
        del seed  # nothing is drawn
        power = float(self.tensors["power"][0])
        if self.classes == 0:
            power = 0.5 if len(features) and features.min() >= 0 else 1.0
        z, y, u = _compress(features, power), labels, _compress(unlabeled, power)
        grown = self._replaced(_with_labels(self.tensors, z, y, classes), power=[power])
        held_out = _Model(grown.tensors).held_out(z, y)
        grown = grown._replaced(temperature=[_temperature(held_out.logits, held_out.labels)])
        if len(u) and len(held_out.familiarity):
            moved, judgement = _refined(grown.tensors, u, held_out)
            grown = grown._replaced(moved)
            held_out = _Model(grown.tensors).held_out(z, y)
            grown = grown._replaced(temperature=[_temperature(held_out.logits, held_out.labels)])
        else:
            pseudo = grown.logits(unlabeled).argmax(1) if classes else np.zeros(len(u))
            judgement = Judgement(pseudo.astype(np.int64), np.zeros(len(u), np.bool_))
        scores = np.sort(np.concatenate([self.tensors["scores"], held_out.familiarity]))
        kept = np.linspace(0, len(scores) - 1, min(SCORES, len(scores))).round().astype(int)
        return grown._replaced(scores=scores[kept]), judgement

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return logits (n, classes); their softmax is a probability of each class."""
        z = _compress(features, float(self.tensors["power"][0]))
        scaled = _Model(self.tensors).logits(z) / float(self.tensors["temperature"][0])
        logits: NDArray[np.float32] = np.maximum(scaled, _NEVER).astype(np.float32)
        return logits

    def nearest_mean(self, features: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the class whose mean of labeled images is nearest, to compare with."""
        z = _compress(features, float(self.tensors["power"][0]))
        means = self.tensors["labeled_means"].astype(np.float64)
        distances = (means**2).sum(1) - 2 * z @ means.T
        nearest: NDArray[np.int64] = distances.argmin(1)
        return nearest

    def linear(self) -> tuple[float, NDArray[np.float32], NDArray[np.float32]]:
        """Return a power, weights and biases: the logits are sign(x) |x|^power W' + b."""
        model, temperature = _Model(self.tensors), float(self.tensors["temperature"][0])
        biases = -model.weights @ model.center - 0.5 * (model.centered * model.weights).sum(1)
        weights = np.where(model.known[:, None], model.weights / temperature, 0)
        biases = np.where(model.known, biases / temperature, _NEVER)
        power = float(self.tensors["power"][0])
        return power, weights.astype(np.float32), biases.astype(np.float32)

    def familiarity(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return how familiar images are (n,): the higher, the more."""
        z = _compress(features, float(self.tensors["power"][0]))
        similarity = _Model(self.tensors).similarity(z)
        familiarity: NDArray[np.float32] = similarity.max(1, initial=-1.0).astype(np.float32)
        return familiarity

    def threshold(self, accept: float) -> float:
        """Return the familiarity that a share `accept` of known images reaches."""
        scores = self.tensors["scores"]
        return float(np.quantile(scores, 1 - accept)) if len(scores) else -1.0

    def _replaced(
        self, tensors: Mapping[str, object] | None = None, **named: object
    ) -> "FeatureClassifier":
        changed = {**(tensors or {}), **named}
        new = {key: np.asarray(value, np.float32) for key, value in changed.items()}
        return FeatureClassifier({**self.tensors, **new})


class _HeldOut(NamedTuple):
    """Scores of labeled images whose class has others, as if they had not been learned."""

    logits: Array
    labels: NDArray[np.int64]
    familiarity: Array
    distances: Array


class _Model:
    """What follows from the state: class means and the inverse of the covariance."""

    def __init__(self, tensors: Mapping[str, NDArray[np.float32]]) -> None:
        state = {key: value.astype(np.float64) for key, value in tensors.items()}
        labeled, unlabeled = state["labeled"], state["unlabeled"]
        self.weight = labeled + unlabeled
        sums = labeled[:, None] * state["labeled_means"]
        sums += unlabeled[:, None] * state["unlabeled_means"]
        self.means = sums / np.maximum(self.weight, 1)[:, None]
        self.known = labeled > 0
        several = self.known.sum() > 1
        self.center = self.means[self.known].mean(0) if several else np.zeros(sums.shape[1])
        self.centered = self.means - self.center
        trace, freedom = state["scatter"]
        axes = state["scatter_axes"]
        squares = (axes**2).sum(1)
        self.per_image = (1 - SHRINKAGE) / max(freedom, 1.0)
        even = SHRINKAGE * trace / max(freedom, 1.0) / max(sums.shape[1], 1)
        self.even = even if even > 0 else 1.0
        self.axes = axes / np.sqrt(np.where(squares > 0, squares, 1))[:, None]
        spread = self.per_image * squares
        self.excess = spread / (self.even * (self.even + spread))
        self.weights = self.whitened(self.centered)

    def whitened(self, rows: Array) -> Array:
        """Return C^-1 times each row."""
        whitened: Array = rows / self.even - ((rows @ self.axes.T) * self.excess) @ self.axes
        return whitened

    def logits(self, z: Array) -> Array:
        """Return the logits before the temperature."""
        logits = (z - self.center) @ self.weights.T
        logits -= 0.5 * (self.centered * self.weights).sum(1)
        return np.where(self.known, logits, _NEVER)

    def similarity(self, z: Array) -> Array:
        """Return the cosine of each image to each class mean, from the center."""
        cosines = _unit(z - self.center) @ _unit(self.centered).T
        return np.where(self.known, cosines, -1.0)

    def distances(self, z: Array) -> Array:
        """Return the squared Mahalanobis distance of each image from each class mean."""
        pulled = self.whitened(self.means)
        distances = -2 * z @ pulled.T + (self.means * pulled).sum(1)
        distances += (z * self.whitened(z)).sum(1)[:, None]
        return np.where(self.known, distances, -2 * _NEVER)

    def held_out(self, z: Array, y: NDArray[np.int64]) -> _HeldOut:
        """Score each labeled image as if it had not been learned."""
        several = self.weight[y] > 1 + 1e-6
        z, y = z[several], y[several]
        rows, weight = np.arange(len(y)), self.weight[y]
        offset = z - self.means[y]
        pulled = self.whitened(offset)
        lost = self.per_image * weight / (weight - 1)
        leverage = np.minimum(lost * (offset * pulled).sum(1), 0.95)
        cross = (z * pulled).sum(1)[:, None] - pulled @ self.means.T
        distances = self.distances(z)
        distances += (lost / (1 - leverage))[:, None] * cross**2
        distances[rows, y] *= (weight / (weight - 1)) ** 2
        logits = -0.5 * distances
        similarity = self.similarity(z)
        others = (self.means[y] * weight[:, None] - z) / (weight - 1)[:, None]
        similarity[rows, y] = (_unit(z - self.center) * _unit(others - self.center)).sum(1)
        return _HeldOut(logits, y, similarity.max(1, initial=-1.0), distances.min(1))


def _with_labels(
    tensors: Mapping[str, NDArray[np.float32]], z: Array, y: NDArray[np.int64], classes: int
) -> dict[str, object]:
    """Return the statistics with labeled images added, the unlabeled ones unchanged."""
    added = classes - len(tensors["labeled"])
    wide = {
        key: np.pad(tensors[key].astype(np.float64), [(0, added)] + [(0, 0)] * (rank - 1))
        for key, rank in (
            ("labeled", 1),
            ("labeled_means", 2),
            ("unlabeled", 1),
            ("unlabeled_means", 2),
        )
    }
    counts, means = wide["labeled"], wide["labeled_means"]
    trace, freedom = tensors["scatter"].astype(np.float64)
    rows = [tensors["scatter_axes"].astype(np.float64)]
    for label in np.unique(y).tolist():
        images = z[y == label]
        mean, before, count = images.mean(0), counts[label], len(images)
        move = mean - means[label]
        rows.append(images - mean)
        freedom += count - 1
        if before:
            rows.append(move[None] * np.sqrt(before * count / (before + count)))
            freedom += 1
        counts[label] += count
        means[label] += move * (count / (before + count))
    trace += sum((some**2).sum() for some in rows[1:])
    return {
        **wide,
        "scatter_axes": _principal(np.concatenate(rows)),
        "scatter": [trace, freedom],
    }


def _principal(rows: Array) -> Array:
    """Return at most `AXES` orthogonal rows of almost the same scatter."""
    if len(rows) <= rows.shape[1]:
        squares, vectors = np.linalg.eigh(rows @ rows.T)
        projected: Array = vectors[:, ::-1][:, :AXES].T @ rows
        return projected
    squares, vectors = np.linalg.eigh(rows.T @ rows)
    lengths = np.sqrt(np.maximum(squares[::-1][:AXES], 0))
    axes: Array = lengths[:, None] * vectors[:, ::-1][:, :AXES].T
    return axes


def _refined(
    tensors: Mapping[str, NDArray[np.float32]], u: Array, held_out: _HeldOut
) -> tuple[dict[str, object], Judgement]:
    """Return the statistics of unlabeled images with `u` added, and what was made of `u`."""
    needed = float(np.quantile(held_out.familiarity, 1 - FAMILIAR))
    farthest = float(np.quantile(held_out.distances, 0.95))
    before = tensors["unlabeled"].astype(np.float64)
    sums = before[:, None] * tensors["unlabeled_means"]
    most = tensors["labeled"].astype(np.float64)
    temperature = float(tensors["temperature"][0])
    found: dict[str, object] = {}
    probabilities, accepted = np.zeros((len(u), len(before))), np.zeros(len(u), np.bool_)
    prior = np.where(most > 0, 1.0, 0.0)
    for _ in range(ROUNDS):
        model = _Model({**tensors, **{k: np.asarray(v) for k, v in found.items()}})
        accepted = model.similarity(u).max(1, initial=-1.0) >= needed
        accepted &= model.distances(u).min(1) <= farthest
        probabilities = _softmax(model.logits(u) / temperature + np.log(np.maximum(prior, 1e-30)))
        shares = probabilities * accepted[:, None]
        prior = np.where(most > 0, shares.sum(0) + 1, 0.0)
        prior /= prior.sum()
        count = before + shares.sum(0)
        mean = (sums + shares.T @ u) / np.maximum(count, 1e-12)[:, None]
        found = {"unlabeled": np.minimum(count, most), "unlabeled_means": mean}
    return found, Judgement(probabilities.argmax(1).astype(np.int64), accepted)


def _temperature(logits: Array, labels: NDArray[np.int64]) -> float:
    """Return the temperature under which the labels are most probable."""
    if len(labels) == 0:
        return 1.0
    rows = np.arange(len(labels))
    scale = max(float(np.std(logits[logits > _NEVER])), 1e-12)
    choices = scale * np.geomspace(1e-3, 1e2, 60)
    losses = [-np.log(_softmax(logits / t)[rows, labels] + 1e-12).mean() for t in choices]
    return float(choices[int(np.argmin(losses))])


def _softmax(logits: Array) -> Array:
    shares: Array = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return shares


def _unit(rows: Array) -> Array:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Array = rows / np.where(lengths > 0, lengths, 1.0)
    return unit


def _compress(features: NDArray[np.float32], power: float) -> Array:
    wide = features.astype(np.float64)
    compressed: Array = np.sign(wide) * np.abs(wide) ** power
    return compressed
