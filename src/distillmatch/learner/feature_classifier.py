"""A classifier on frozen features: it keeps statistics of the classes and no image.

Features x are first compressed, z = sqrt(x) if none is negative. Of each class c the state keeps
the number and the mean of its labeled images, n_c and a_c, and of the unlabeled images taken for
it, u_c and b_c; of all classes together, the largest axes of the scatter within classes, S.

    mean         m_c = (n_c a_c + w_c b_c) / (n_c + w_c),   g = the mean of the m_c
    covariance   C = (1 - s) S / f + s v I,   v = tr(S) / (f d), f the degrees of freedom
    logits       l_c = (z - g)' C^-1 (m_c - g) - (m_c - g)' C^-1 (m_c - g) / 2 + e_c, over T
    chance       e_c = d / 2 (n_c + w_c), less the mean of it over the classes
    odds         o = log sum_c exp(l_c / t) - log(1 + w sum_o exp(l_o / t)),   t = d / 20
    angle        a = 1 - max_c cos(z, m_c)
    familiarity  min(o', 1.25 - a'), each less its mean and over its deviation on known images;
                 without others o' - a' / 2 in place of o'

An other o is the mean of a cluster of unlabeled images that are no known class, and l_o its logit.
The clusters are made several times, whence the weight w, and only if the camera shows more images
at a large angle than there are among known ones. The odds tell classes apart that resemble each
other, the angle tells other worlds. The temperature T and the distributions of odds and angle come
from labeled images scored by a classifier that has not learned them (cross-validation); while they
are few, T stays near t.

Familiar unlabeled images move the means by their probabilities, but earn their weight w_c: if b_c
is farther from a_c than chance explains, the excess is its bias, and w_c the number of labeled
images of the same error; it is never more than n_c.

    bias_c = max(0, |a_c - b_c|^2 - d v (1 / n_c + 1 / u_c))
    w_c    = min(n_c, d v / (d v / u_c + bias_c))
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
State = dict[str, Array]

SHRINKAGE = 0.8
"""Share s of the identity in the covariance."""
AXES = 128
"""Axes of the scatter that are kept."""
FOLDS = 10
FAMILIAR = 0.5
"""Share of known images that are as familiar as an unlabeled image must be to be learned."""
ROUNDS = 5
MEMORY = 5
"""Unlabeled images remembered for each labeled one; beyond, the mean follows newer ones."""
ANGLES = 4096
"""Held-out images whose angles are kept."""
RECENT = 50
"""Held-out images at least whose scores count; those of earlier tasks met fewer classes."""
CAUTION = 0.4
"""Deviations of the number of known images below the threshold by which it is set lower."""
FAR = 1.25
"""By how many deviations more the angle may be unusual than the odds."""
BLEND = 0.5
"""Weight of the angle beside the odds where there are no others."""
BEYOND = 0.3
"""Share of known images by whose angle it is told whether the camera shows anything else."""
CLUSTERED, TRIES, CLUSTERS, SMALLEST = 4096, 4, 1.2, 3
"""Unlabeled images that are clustered at most; how often; clusters for each known class; images in
a cluster at least.
"""
BEGIN = 0.4
"""Share of known images that have lower odds than those that clusters begin with at most have."""
TAKEN = 0.2
"""Share of a class's labeled images that an other may take before it is that class."""
USUAL = 20
"""Features for one unit of the temperature that is usual: logits grow with their number."""
_NEVER = -1e12


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
                "temperature": np.full(1, _usual_temperature(dimension), np.float32),
                "power": np.ones(1, np.float32),
                "others": np.zeros((0, dimension), np.float32),
                "scores": np.zeros((0, 2), np.float32),  # odds and angles of recent held-out images
                "angles": np.zeros(0, np.float32),  # of those of all tasks
            }
        )

    @classmethod
    def restored(cls, tensors: Mapping[str, NDArray[np.float32]]) -> "FeatureClassifier":
        """Return what was kept, without scores of earlier versions, which meant something else."""
        if "angles" in tensors:
            return cls(tensors)
        empty = cls.empty(tensors["labeled_means"].shape[1]).tensors
        return cls({**tensors, **{key: empty[key] for key in ("others", "scores", "angles")}})

    @property
    def classes(self) -> int:
        """The number of classes known."""
        return len(self.tensors["labeled"])

    @property
    def dimension(self) -> int:
        """The number of features of an image."""
        return int(self.tensors["labeled_means"].shape[1])

    @property
    def has_scores(self) -> bool:
        """Whether any labeled image was scored without learning it: one of a class has no rest."""
        return len(self.tensors["scores"]) > 0

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
        power = float(self.tensors["power"][0])
        if self.classes == 0:
            power = 0.5 if len(features) and features.min() >= 0 else 1.0
        z, u = _compress(features, power), _compress(unlabeled, power)
        before = _grown(self.tensors, classes)
        learned = _with_labels(before, z, labels)
        folds = _folds(before, z, labels)
        judgement = Judgement(np.zeros(len(u), np.int64), np.zeros(len(u), np.bool_))
        if len(u) and classes:
            alone = learned | {"others": before["others"][:0]}
            learned["others"] = _others(alone, u, _held_out(alone, folds), seed)
            learned, judgement = _with_unlabeled(learned, u, _held_out(learned, folds))
        learned["others"] = _without_taken(learned, folds)
        held_out = _held_out(learned, folds)
        if len(held_out.labels):
            learned["temperature"] = np.array([held_out.temperature])
            # Of one class alone, scores tell nothing.
            first = None if (before["labeled"] > 0).sum() > 1 else 0
            scores = np.concatenate([before["scores"][:first], held_out.scores])
            angles = np.concatenate([before["angles"][:first], held_out.scores[:, 1]])
            kept = np.linspace(0, len(angles) - 1, min(ANGLES, len(angles))).round().astype(int)
            learned["scores"] = scores[-max(RECENT, len(held_out.scores)) :]
            learned["angles"] = angles[kept]
        learned["power"] = np.array([power])
        stored = {key: value.astype(np.float32) for key, value in learned.items()}
        return FeatureClassifier(stored), judgement

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return logits (n, classes); their softmax is a probability of each class."""
        model = self._model
        logits = model.logits(self._compressed(features)) / model.temperature
        return np.asarray(np.maximum(logits, _NEVER), np.float32)

    def linear(self) -> tuple[float, NDArray[np.float32], NDArray[np.float32]]:
        """Return a power, weights and biases: the logits are sign(x) |x|^power W' + b."""
        model = self._model
        weights = np.where(model.known[:, None], model.weights / model.temperature, 0)
        biases = np.where(model.known, model.biases / model.temperature, _NEVER)
        power = float(self.tensors["power"][0])
        return power, weights.astype(np.float32), biases.astype(np.float32)

    def nearest_mean(self, features: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the class whose mean of labeled images is nearest, to compare with."""
        means = self.tensors["labeled_means"].astype(np.float64)
        distances = (means**2).sum(1) - 2 * self._compressed(features) @ means.T
        nearest: NDArray[np.int64] = distances.argmin(1)
        return nearest

    def familiarity(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return how familiar images are (n,): the higher, the more."""
        scores = self._model.scores(self._compressed(features))
        known = self.tensors["scores"].astype(np.float64)
        return np.asarray(_familiarity(scores, self.tensors, known), np.float32)

    def threshold(self, accept: float) -> float:
        """Return the familiarity that a share `accept` of known images reaches."""
        known = self.tensors["scores"].astype(np.float64)
        if len(known) == 0:
            return float(np.finfo(np.float32).min)
        spread = np.sqrt(accept * (1 - accept) / len(known))
        share = max(0.0, 1 - accept - CAUTION * spread)
        return float(np.quantile(_familiarity(known, self.tensors, known), share))

    @property
    def _model(self) -> "_Model":
        return _Model({key: value.astype(np.float64) for key, value in self.tensors.items()})

    def _compressed(self, features: NDArray[np.float32]) -> Array:
        return _compress(features, float(self.tensors["power"][0]))


class _Model:
    """What follows from the state: class means and the inverse of the covariance."""

    def __init__(self, state: State) -> None:
        labeled, axes = state["labeled"], state["scatter_axes"]
        self.known = labeled > 0
        self.temperature = float(state["temperature"][0])
        trace, freedom = state["scatter"].tolist()
        variance = trace / max(freedom, 1.0)
        weight = _earned(state, variance)
        sums = (
            labeled[:, None] * state["labeled_means"] + weight[:, None] * state["unlabeled_means"]
        )
        self.means = sums / np.maximum(labeled + weight, 1)[:, None]
        several = self.known.sum() > 1
        self.center = self.means[self.known].mean(0) if several else np.zeros(sums.shape[1])
        between = float(self.means[self.known].var(0).sum()) if several else 0.0
        variance = max(variance, 1e-6 * between) if freedom else between
        self.even = SHRINKAGE * variance / max(sums.shape[1], 1) or 1.0
        squares = (axes**2).sum(1)
        spread = (1 - SHRINKAGE) * squares / max(freedom, 1.0)
        self.axes = axes / np.sqrt(np.where(squares > 0, squares, 1))[:, None]
        self.excess = spread / (self.even * (self.even + spread))
        self.weights, self.biases = self.linear(self.means)
        # The mean of a few images lies farther out by chance, which must not count against it.
        chance = sums.shape[1] / np.maximum(labeled + weight, 1)
        self.biases += (chance - (chance[self.known].mean() if several else chance)) / 2
        self.other_weights, self.other_biases = self.linear(state["others"])

    def logits(self, z: Array) -> Array:
        """Return the logits before the temperature."""
        return np.where(self.known, z @ self.weights.T + self.biases, _NEVER)

    def scores(self, z: Array) -> Array:
        """Return of each image the odds that it is of a known class, and its angle."""
        if not self.known.any():
            return np.zeros((len(z), 2))
        means, t = self.means[self.known], _usual_temperature(z.shape[1])
        known = np.logaddexp.reduce(self.logits(z)[:, self.known] / t, axis=1)
        others = z @ self.other_weights.T + self.other_biases
        nothing = np.full((len(z), 1), np.log(TRIES))
        against = np.logaddexp.reduce(np.concatenate([nothing, others / t], axis=1), axis=1)
        lengths = np.linalg.norm(z, axis=1)[:, None] * np.linalg.norm(means, axis=1)
        angle = 1 - (z @ means.T / np.maximum(lengths, 1e-12)).max(1)
        return np.stack([known - against + np.log(TRIES), angle], axis=1)

    def linear(self, means: Array) -> tuple[Array, Array]:
        """Return the weights and biases of the logits of classes with these means."""
        weights = self._whitened(means - self.center)
        return weights, -0.5 * ((means + self.center) * weights).sum(1)

    def _whitened(self, rows: Array) -> Array:
        whitened: Array = rows / self.even - ((rows @ self.axes.T) * self.excess) @ self.axes
        return whitened


class _Fold(NamedTuple):
    """Labeled images, and the state without them."""

    rest: State
    z: Array
    y: NDArray[np.int64]


class _HeldOut(NamedTuple):
    """Labeled images as seen by a classifier that has not learned them."""

    logits: Array
    labels: NDArray[np.int64]
    scores: Array
    temperature: float


def _earned(state: State, variance: float) -> Array:
    """Return the number of labeled images that the unlabeled ones of each class stand for."""
    labeled, unlabeled = state["labeled"], state["unlabeled"]
    some = np.maximum(unlabeled, 1e-9)
    moved = ((state["unlabeled_means"] - state["labeled_means"]) ** 2).sum(1)
    bias = np.maximum(0.0, moved - variance * (1 / np.maximum(labeled, 1) + 1 / some))
    error = variance / some + bias
    stands_for = np.where(error > 0, variance / np.where(error > 0, error, 1), unlabeled)
    return np.minimum(np.minimum(stands_for, unlabeled), labeled)


def _familiarity(scores: Array, state: Mapping[str, NDArray[Any]], known: Array) -> Array:
    """Return how familiar images are by their scores, and by those of known images."""
    spread = known.std(0) if len(known) else np.zeros(2)
    mean = known.mean(0) if len(known) else np.zeros(2)
    odds, angle = ((scores - mean) / np.where(spread > 0, spread, 1.0)).T
    if not len(state["others"]):
        odds = odds - BLEND * angle
    return np.asarray(np.minimum(odds, FAR - angle))


def _folds(before: State, z: Array, y: NDArray[np.int64]) -> list[_Fold]:
    """Return labeled images in turn, with what is learned of the rest; alone ones are left out."""
    order = np.argsort(y, kind="stable")
    counts = np.bincount(y, minlength=len(before["labeled"]))
    within = np.empty(len(y), np.int64)
    within[order] = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)
    folds = []
    for fold in range(min(FOLDS, int(counts.max(initial=0)))):
        out = within % FOLDS == fold
        rest = _with_labels(before, z[~out], y[~out])
        out &= rest["labeled"][y] > 0
        folds.append(_Fold(rest, z[out], y[out]))
    return folds


def _held_out(learned: State, folds: list[_Fold]) -> _HeldOut:
    """Score labeled images by what was learned of the rest and of the unlabeled ones.

    Where none came, those of the past stand for them.
    """
    if not folds:
        temperature = float(learned["temperature"][0])
        nothing = np.zeros((0, len(learned["labeled"])))
        return _HeldOut(nothing, np.zeros(0, np.int64), learned["scores"], temperature)
    shared = {key: learned[key] for key in ("unlabeled", "unlabeled_means", "others")}
    found, scores = [np.zeros((0, len(learned["labeled"])))], [np.zeros((0, 2))]
    for fold in folds:
        model = _Model(fold.rest | shared)
        found.append(model.logits(fold.z))
        scores.append(model.scores(fold.z))
    logits = np.concatenate(found)
    labels = np.concatenate([np.zeros(0, np.int64), *(fold.y for fold in folds)])
    usual = _usual_temperature(learned["labeled_means"].shape[1])
    temperature = _temperature(logits, labels, usual)
    return _HeldOut(logits, labels, np.concatenate(scores), temperature)


def _grown(tensors: Mapping[str, NDArray[np.float32]], classes: int) -> State:
    """Return the state with room for more classes."""
    state = {key: value.astype(np.float64) for key, value in tensors.items()}
    added = classes - len(state["labeled"])
    for key in ("labeled", "labeled_means", "unlabeled", "unlabeled_means"):
        rows = np.zeros((added, *state[key].shape[1:]))
        state[key] = np.concatenate([state[key], rows])
    return state


def _with_labels(before: State, z: Array, y: NDArray[np.int64]) -> State:
    """Return the state with labeled images added."""
    counts, means = before["labeled"].copy(), before["labeled_means"].copy()
    trace, freedom = before["scatter"]
    rows = [before["scatter_axes"]]
    for label in np.unique(y).tolist():
        images = z[y == label]
        mean, old, count = images.mean(0), counts[label], len(images)
        move = mean - means[label]
        rows.append(images - mean)
        freedom += count - 1
        if old:
            rows.append(move[None] * np.sqrt(old * count / (old + count)))
            freedom += 1
        counts[label] += count
        means[label] += move * (count / (old + count))
    trace += sum((some**2).sum() for some in rows[1:])
    axes = _principal(np.concatenate(rows))
    scatter = np.array([trace, freedom])
    return {
        **before,
        "labeled": counts,
        "labeled_means": means,
        "scatter_axes": axes,
        "scatter": scatter,
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


def _with_unlabeled(learned: State, u: Array, held_out: _HeldOut) -> tuple[State, Judgement]:
    """Return the state with unlabeled images added, and what was made of them."""
    known, before, most = held_out.scores, learned["unlabeled"], MEMORY * learned["labeled"]
    sums = before[:, None] * learned["unlabeled_means"]
    needed, farthest = np.inf, 0.0
    if len(known):
        needed = float(np.quantile(_familiarity(known, learned, known), 1 - FAMILIAR))
        farthest = float(np.quantile(known[:, 1], 0.95))
    state, accepted, shares = learned, np.zeros(len(u), np.bool_), np.zeros((0, 0))
    for _ in range(ROUNDS):
        model = _Model(state)
        scores = model.scores(u)
        accepted = (_familiarity(scores, learned, known) >= needed) & (scores[:, 1] <= farthest)
        shares = _softmax(model.logits(u) / held_out.temperature)
        taken = shares * accepted[:, None]
        count = before + taken.sum(0)
        mean = (sums + taken.T @ u) / np.maximum(count, 1e-9)[:, None]
        state = {**learned, "unlabeled": np.minimum(count, most), "unlabeled_means": mean}
    return state, Judgement(shares.argmax(1).astype(np.int64), accepted)


def _others(alone: State, u: Array, held_out: _HeldOut, seed: int) -> Array:
    """Return the means of clusters of unlabeled images that are no known class, if there are any.

    Known classes take part in the clustering: their means begin at those of the labeled images.
    """
    known, model, draw = held_out.scores, _Model(alone), np.random.default_rng(seed)
    u = u[draw.permutation(len(u))[:CLUSTERED]]
    scores, angles = model.scores(u), np.concatenate([alone["angles"], known[:, 1]])
    if len(known) == 0:
        return alone["others"]
    beyond = (scores[:, 1] > np.quantile(angles, 1 - BEYOND)).mean()
    by_chance = np.sqrt(BEYOND * (1 - BEYOND) * (1 / len(u) + 1 / len(angles)))
    if beyond <= BEYOND + by_chance:
        return alone["others"]
    unusual = u[scores[:, 0] < np.quantile(known[:, 0], 1 - BEGIN)]
    count = min(max(2, int(CLUSTERS * model.known.sum())), len(unusual) // SMALLEST)
    found = [alone["others"]]
    for _ in range(TRIES if count else 0):
        means = _groups(unusual, count, draw)
        found.append(_clusters(model, alone["labeled"][model.known], u, means))
    return np.concatenate(found)


def _groups(z: Array, count: int, draw: np.random.Generator) -> Array:
    """Return the means of a k-means clustering."""
    means = z[draw.choice(len(z), count, replace=False)]
    for _ in range(10):
        nearest = ((means**2).sum(1) - 2 * z @ means.T).argmin(1)
        means, _ = _means_of(z, nearest, means, np.zeros(count))
    return means


def _clusters(model: _Model, labeled: Array, u: Array, others: Array) -> Array:
    """Return the means of the other clusters, after images have moved between them and classes."""
    first = np.concatenate([model.means[model.known], others])
    counts = np.concatenate([labeled, np.zeros(len(others))])
    means, sizes = first, counts
    for _ in range(12):
        weights, biases = model.linear(means)
        means, sizes = _means_of(u, (u @ weights.T + biases).argmax(1), first, counts)
    return means[len(labeled) :][sizes[len(labeled) :] >= SMALLEST]


def _means_of(
    z: Array, cluster: NDArray[np.int64], first: Array, counts: Array
) -> tuple[Array, Array]:
    """Return the mean and size of each cluster; the first means count as so many images."""
    members = (cluster == np.arange(len(first))[:, None]).astype(float)
    sizes = counts + members.sum(1)
    sums = counts[:, None] * first + members @ z
    means = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], first)
    return means, sizes


def _without_taken(learned: State, folds: list[_Fold]) -> Array:
    """Return the others less those that take much of a class, for they are that class."""
    shares = np.zeros((len(learned["labeled"]), len(learned["others"])))
    for fold in folds:
        model = _Model(fold.rest | {"others": learned["others"]})
        own = model.logits(fold.z)[np.arange(len(fold.z)), fold.y]
        taken = fold.z @ model.other_weights.T + model.other_biases > own[:, None]
        np.add.at(shares, fold.y, taken)
    counts = np.bincount(np.concatenate([[], *(fold.y for fold in folds)]).astype(int))
    shares[: len(counts)] /= np.maximum(counts, 1)[:, None]
    kept: Array = learned["others"][shares.max(axis=0, initial=0.0) <= TAKEN]
    return kept


def _temperature(logits: Array, labels: NDArray[np.int64], usual: float) -> float:
    """Return the temperature under which the labels are most probable, few labels near the usual.

    Of a few images that all are told right, the lowest temperature would be the best one.
    """
    if len(labels) == 0:
        return usual
    rows = np.arange(len(labels))
    scale = max(float(np.std(logits[logits > _NEVER])), 1e-12)
    choices = scale * np.geomspace(1e-3, 1e2, 60)
    losses = [-np.log(_softmax(logits / t)[rows, labels] + 1e-12).sum() for t in choices]
    prior = np.log(choices / usual) ** 2 / 2
    return float(choices[int(np.argmin(losses + prior))])


def _usual_temperature(dimension: int) -> float:
    """Return about the temperature that photographs need."""
    return max(1.0, dimension / USUAL)


def _softmax(logits: Array) -> Array:
    shares: Array = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return shares


def _compress(features: NDArray[np.float32], power: float) -> Array:
    wide = features.astype(np.float64)
    compressed: Array = np.sign(wide) * np.abs(wide) ** power
    return compressed
