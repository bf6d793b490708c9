"""A discriminant classifier on frozen features that also scores how familiar images are.

It keeps statistics and no images. Features x of dimension d are compressed: z = sign(x) sqrt(|x|)
if those of the first task are nonnegative, else z = x. For each class c the state has the number
and the mean of its labeled images, n_c and a_c, and of the unlabeled images assigned to it, u_c and
b_c; for all classes together, the principal axes of the scatter S within classes.

    mean         m_c = (n_c a_c + w_c b_c) / (n_c + w_c),   g = the mean of the m_c
    covariance   C = (1 - s) S / f + s v I,   v = tr(S) / (f d),   f degrees of freedom
    logit        l_c = (z - g)' C^-1 (m_c - g) - (m_c - g)' C^-1 (m_c - g) / 2 + e_c
    correction   e_c = d / (2 (n_c + w_c)), minus its mean over the classes
    probability  softmax(l / T)
    odds         o = log sum_c exp(l_c / t) - log(1 + sum_k exp(l_k / t) / r),   t = max(1, d / 20)
    angle        a = 1 - max_c cos(z, m_c)
    familiarity  min(o', 1.25 - a'), standardized by the mean and deviation of known images;
                 o' - a' / 2 in place of o' if there are no other clusters

The correction makes up for means of few images, which are farther out by chance.

Familiar unlabeled images update b_c, weighted by their probabilities. The mean b_c counts as many
labeled images, w_c, as have the same squared error, and never more than n_c. Its bias is what
exceeds the distance between a_c and b_c expected by chance.

    bias_c = max(0, |a_c - b_c|^2 - d v (1 / n_c + 1 / u_c))
    w_c    = min(n_c, d v / (d v / u_c + bias_c))

The other clusters k are means of unlabeled images that belong to no known class; l_k has no
correction. Unlabeled images are clustered r times, but only if more of them than of the known
images are at a large angle. Each image is left out of one clustering, by which alone it is scored.
The odds separate classes that resemble each other, the angle detects images unlike anything known.

The temperature T and the odds and angles of known images come from cross-validation: labeled images
are scored by a classifier that has not learned them. With few of them, T stays near t.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
State = dict[str, Array]

SHRINKAGE = 0.8
"""Weight s of the identity in the covariance."""
AXES = 128
"""Axes of the scatter that are kept."""
FOLDS = 10
FAMILIAR, NEAR = 0.5, 0.95
"""An unlabeled image is learned if it is as familiar as the first share of known images is, and its
angle as small as that of the second.
"""
ROUNDS = 5
"""Rounds of assigning unlabeled images to classes."""
MEMORY = 5
"""Most unlabeled images remembered for each labeled one; beyond that, the mean follows new ones."""
ANGLES, RECENT = 4096, 50
"""Most angles of held-out images that are kept, and fewest scores: those of earlier tasks were
computed with fewer classes.
"""
CAUTION = 0.4
"""The threshold is lowered by so many standard deviations of the share of known images."""
FAR, BLEND = 1.25, 0.5
"""Allowance of the angle over the odds, and its weight beside them without other clusters."""
BEYOND = 0.3
"""Share of known images whose angle counts as large."""
CLUSTERED, TRIES, CLUSTERS, SMALLEST = 4096, 6, 1.2, 3
"""Most images that are clustered, how often (r), clusters per known class, and their least size."""
BEGIN = 0.3
"""Clusters start from images whose odds this share of known images exceeds."""
TAKEN = 0.2
"""Another cluster that claims more than this share of a class's labeled images is dropped."""
USUAL = 20
"""Features per unit of the usual temperature t."""
_NEVER = -1e12


class Judgement(NamedTuple):
    """The class of each unlabeled image of a task, whether it was accepted, and how familiar it is.

    Clusters that an image is part of do not count in its own familiarity.
    """

    pseudo_labels: NDArray[np.int64]
    accepted: NDArray[np.bool_]
    familiarity: Array


@dataclass(frozen=True, eq=False)
class FeatureClassifier:
    """Statistics of classes, by the features of a frozen network."""

    tensors: Mapping[str, NDArray[np.float32]]

    @classmethod
    def empty(cls, dimension: int) -> "FeatureClassifier":
        """Return a classifier without classes."""
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
                "scores": np.zeros((0, 2), np.float32),  # odds and angles of held-out images
                "angles": np.zeros(0, np.float32),  # those of all tasks
            }
        )

    @classmethod
    def restored(cls, tensors: Mapping[str, NDArray[np.float32]]) -> "FeatureClassifier":
        """Return the saved classifier, without the scores of earlier versions, which differed."""
        if "angles" in tensors:
            return cls(tensors)
        empty = cls.empty(tensors["labeled_means"].shape[1]).tensors
        return cls({**tensors, **{key: empty[key] for key in ("others", "scores", "angles")}})

    @property
    def has_scores(self) -> bool:
        """Whether there are held-out scores; these need a class with two labeled images."""
        return len(self.tensors["scores"]) > 0

    @property
    def bytes(self) -> int:
        """The size of the state in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def after(
        self,
        features: NDArray[np.float32],
        labels: NDArray[np.int64],
        classes: int,
        unlabeled: NDArray[np.float32],
        seed: int,
    ) -> tuple["FeatureClassifier", Judgement]:
        """Return the classifier after a task, and the judgement of its unlabeled images."""
        before = _grown(self.tensors, classes)
        if not len(self.tensors["labeled"]):
            before["power"][0] = 0.5 if len(features) and features.min() >= 0 else 1.0
        z, u = (_compress(x, before["power"][0]) for x in (features, unlabeled))
        learned, folds = _with_labels(before, z, labels), _folds(before, z, labels)
        nothing = np.zeros(len(u), np.int64)
        judgement = Judgement(nothing, nothing.astype(bool), np.full(len(u), np.inf))
        if len(u) and classes:
            alone = learned | {"others": before["others"][:0]}
            apart = np.random.default_rng(seed).integers(TRIES, size=len(u))
            clusters = _others(alone, u, apart, _held_out(alone, folds)[0], seed)
            learned["others"] = np.concatenate(clusters)
            known = _held_out(learned, folds)
            learned, judgement = _with_unlabeled(learned, u, apart, clusters, *known)
        learned["others"] = _without_taken(learned, folds)
        if any(len(fold.y) for fold in folds):
            new, temperature = _held_out(learned, folds)
            learned["temperature"] = np.array([temperature])
            # Scores of a single class mean nothing beside several.
            past = slice(None if (before["labeled"] > 0).sum() > 1 else 0)
            angles = np.concatenate([before["angles"][past], new[:, 1]])
            kept = np.linspace(0, len(angles) - 1, min(ANGLES, len(angles))).round().astype(int)
            scores = np.concatenate([before["scores"][past], new])
            learned["scores"], learned["angles"] = scores[-max(RECENT, len(new)) :], angles[kept]
        stored = {key: value.astype(np.float32) for key, value in learned.items()}
        return FeatureClassifier(stored), judgement

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return logits (n, classes), divided by the temperature."""
        model = self._model
        logits = model.logits(self._compressed(features)) / model.temperature
        return np.asarray(np.maximum(logits, _NEVER), np.float32)

    def linear(self) -> tuple[float, NDArray[np.float32], NDArray[np.float32]]:
        """Return a power, weights and biases; the logits are sign(x) |x|^power W' + b."""
        model = self._model
        weights = np.where(model.known[:, None], model.weights / model.temperature, 0)
        biases = np.where(model.known, model.biases / model.temperature, _NEVER)
        return model.power, weights.astype(np.float32), biases.astype(np.float32)

    def nearest_mean(self, features: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the class whose mean of labeled images is nearest, for comparison."""
        means = self.tensors["labeled_means"].astype(np.float64)
        distances = (means**2).sum(1) - 2 * self._compressed(features) @ means.T
        return np.asarray(distances.argmin(1))

    def familiarity(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return how familiar images are (n,)."""
        scores = self._model.scores(self._compressed(features))
        return _familiarity(scores, self._known, self.tensors["others"]).astype(np.float32)

    def threshold(self, accept: float) -> float:
        """Return the familiarity that a share `accept` of known images reaches."""
        known = self._known
        if len(known) == 0:
            return float(np.finfo(np.float32).min)
        deviation = np.sqrt(accept * (1 - accept) / len(known))
        share = max(0.0, 1 - accept - CAUTION * deviation)
        return float(np.quantile(_familiarity(known, known, self.tensors["others"]), share))

    @property
    def _model(self) -> "_Model":
        return _Model({key: value.astype(np.float64) for key, value in self.tensors.items()})

    @property
    def _known(self) -> Array:
        return self.tensors["scores"].astype(np.float64)

    def _compressed(self, features: NDArray[np.float32]) -> Array:
        return _compress(features, float(self.tensors["power"][0]))


class _Model:
    """Class means and the inverse covariance, as they follow from a state."""

    def __init__(self, state: State) -> None:
        labeled, axes = state["labeled"], state["scatter_axes"]
        dimension, (trace, freedom) = axes.shape[1], state["scatter"].tolist()
        variance = trace / max(freedom, 1.0)
        self.known = labeled > 0
        self.temperature, self.power = float(state["temperature"][0]), float(state["power"][0])
        self.usual = _usual_temperature(dimension)
        weight = _weight_of_unlabeled(state, variance)
        count = np.maximum(labeled + weight, 1)
        sums = (
            labeled[:, None] * state["labeled_means"] + weight[:, None] * state["unlabeled_means"]
        )
        self.means = sums / count[:, None]
        several = self.known.sum() > 1
        self.center = self.means[self.known].mean(0) if several else np.zeros(dimension)
        between = float(self.means[self.known].var(0).sum()) if several else 0.0
        variance = max(variance, 1e-6 * between) if freedom else between
        # The inverse by Woodbury's identity: I / even - axes' diag(excess) axes.
        self.even = SHRINKAGE * variance / max(dimension, 1) or 1.0
        squares = (axes**2).sum(1)
        spread = (1 - SHRINKAGE) * squares / max(freedom, 1.0)
        self.axes = axes / np.sqrt(np.where(squares > 0, squares, 1))[:, None]
        self.excess = spread / (self.even * (self.even + spread))
        self.weights, self.biases = self.linear(self.means)
        chance = dimension / count
        self.biases += (chance - (chance[self.known].mean() if several else chance)) / 2
        self.other_weights, self.other_biases = self.linear(state["others"])

    def logits(self, z: Array) -> Array:
        """Return the logits of the classes."""
        return np.where(self.known, z @ self.weights.T + self.biases, _NEVER)

    def other_logits(self, z: Array) -> Array:
        """Return the logits of the other clusters."""
        return np.asarray(z @ self.other_weights.T + self.other_biases)

    def linear(self, means: Array) -> tuple[Array, Array]:
        """Return the weights and biases of the logits of classes with these means."""
        moved = means - self.center
        weights = moved / self.even - ((moved @ self.axes.T) * self.excess) @ self.axes
        return weights, -0.5 * ((means + self.center) * weights).sum(1)

    def scores(self, z: Array) -> Array:
        """Return the odds of each image that it is of a known class, and its angle."""
        if not self.known.any():
            return np.zeros((len(z), 2))
        means = self.means[self.known]
        known = np.logaddexp.reduce(self.logits(z)[:, self.known] / self.usual, axis=1)
        nothing = np.full((len(z), 1), np.log(TRIES))
        others = np.concatenate([nothing, self.other_logits(z) / self.usual], axis=1)
        odds = known - np.logaddexp.reduce(others, axis=1) + np.log(TRIES)
        lengths = np.linalg.norm(z, axis=1)[:, None] * np.linalg.norm(means, axis=1)
        return np.stack([odds, 1 - (z @ means.T / np.maximum(lengths, 1e-12)).max(1)], axis=1)


class _Fold(NamedTuple):
    """Labeled images, and the state without them."""

    rest: State
    z: Array
    y: NDArray[np.int64]


def _weight_of_unlabeled(state: State, variance: float) -> Array:
    """Return the number of labeled images that the unlabeled ones of each class count as."""
    labeled, unlabeled = state["labeled"], state["unlabeled"]
    count = np.maximum(unlabeled, 1e-9)
    distance = ((state["unlabeled_means"] - state["labeled_means"]) ** 2).sum(1)
    bias = np.maximum(0.0, distance - variance * (1 / np.maximum(labeled, 1) + 1 / count))
    error = variance / count + bias
    weight = np.where(error > 0, variance / np.where(error > 0, error, 1), unlabeled)
    return np.minimum(np.minimum(weight, unlabeled), labeled)


def _familiarity(scores: Array, known: Array, others: NDArray[Any]) -> Array:
    """Return how familiar images are by their scores and those of known images."""
    mean, spread = (known.mean(0), known.std(0)) if len(known) else (0.0, np.zeros(2))
    odds, angle = ((scores - mean) / np.where(spread > 0, spread, 1.0)).T
    if not len(others):
        odds = odds - BLEND * angle
    return np.asarray(np.minimum(odds, FAR - angle))


def _folds(before: State, z: Array, y: NDArray[np.int64]) -> list[_Fold]:
    """Divide labeled images for cross-validation; single images of a class are left out."""
    within = np.empty(len(y), np.int64)
    for label in np.unique(y):
        within[y == label] = np.arange((y == label).sum())
    folds = []
    for fold in range(min(FOLDS, int(within.max(initial=-1)) + 1)):
        out = within % FOLDS == fold
        rest = _with_labels(before, z[~out], y[~out])
        out &= rest["labeled"][y] > 0
        folds.append(_Fold(rest, z[out], y[out]))
    return folds


def _held_out(learned: State, folds: list[_Fold]) -> tuple[Array, float]:
    """Return the scores of held-out images and the temperature, those of the past without folds."""
    if not folds:
        return learned["scores"], float(learned["temperature"][0])
    shared = {key: learned[key] for key in ("unlabeled", "unlabeled_means", "others")}
    logits, scores = [], []
    for fold in folds:
        model = _Model(fold.rest | shared)
        logits.append(model.logits(fold.z))
        scores.append(model.scores(fold.z))
    labels = np.concatenate([fold.y for fold in folds])
    usual = _usual_temperature(learned["labeled_means"].shape[1])
    return np.concatenate(scores), _temperature(np.concatenate(logits), labels, usual)


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
    learned = {"labeled": counts, "labeled_means": means}
    return before | learned | {"scatter_axes": axes, "scatter": scatter}


def _principal(rows: Array) -> Array:
    """Return at most `AXES` orthogonal rows of almost the same scatter."""
    if len(rows) <= rows.shape[1]:
        squares, vectors = np.linalg.eigh(rows @ rows.T)
        return np.asarray(vectors[:, ::-1][:, :AXES].T @ rows)
    squares, vectors = np.linalg.eigh(rows.T @ rows)
    lengths = np.sqrt(np.maximum(squares[::-1][:AXES], 0))
    return np.asarray(lengths[:, None] * vectors[:, ::-1][:, :AXES].T)


def _with_unlabeled(
    learned: State,
    u: Array,
    apart: NDArray[np.int64],
    clusters: list[Array],
    known: Array,
    temperature: float,
) -> tuple[State, Judgement]:
    """Return the state with unlabeled images added, and the judgement of them."""
    before, most, others = learned["unlabeled"], MEMORY * learned["labeled"], learned["others"]
    sums = before[:, None] * learned["unlabeled_means"]
    needed, farthest = np.inf, 0.0
    if len(known):
        needed = float(np.quantile(_familiarity(known, known, others), 1 - FAMILIAR))
        farthest = float(np.quantile(known[:, 1], NEAR))
    state, accepted, shares = learned, np.zeros(len(u), np.bool_), np.zeros((0, 0))
    familiarity = np.zeros(len(u))
    for _ in range(ROUNDS):
        model = _Model(state)
        scores = model.scores(u)
        for number, some in enumerate(clusters if len(others) else ()):
            without = _Model(state | {"others": np.repeat(some, TRIES, axis=0)})
            scores[apart == number] = without.scores(u[apart == number])
        familiarity = _familiarity(scores, known, others)
        accepted = (familiarity >= needed) & (scores[:, 1] <= farthest)
        shares = _softmax(model.logits(u) / temperature)
        taken = shares * accepted[:, None]
        count = before + taken.sum(0)
        mean = (sums + taken.T @ u) / np.maximum(count, 1e-9)[:, None]
        state = {**learned, "unlabeled": np.minimum(count, most), "unlabeled_means": mean}
    return state, Judgement(shares.argmax(1).astype(np.int64), accepted, familiarity)


def _others(
    alone: State, u: Array, apart: NDArray[np.int64], known: Array, seed: int
) -> list[Array]:
    """Return means of clusters of unlabeled images that belong to no known class, if any.

    There are `TRIES` arrays of them; images with `apart` k have no part in the k-th.
    """
    nothing = [alone["others"]] * TRIES
    if len(known) == 0:
        return nothing
    model, draw = _Model(alone), np.random.default_rng(seed)
    scores, angles = model.scores(u), np.concatenate([alone["angles"], known[:, 1]])
    beyond = (scores[:, 1] > np.quantile(angles, 1 - BEYOND)).mean()
    by_chance = np.sqrt(BEYOND * (1 - BEYOND) * (1 / len(u) + 1 / len(angles)))
    if beyond <= BEYOND + by_chance:
        return nothing
    is_unusual = scores[:, 0] < np.quantile(known[:, 0], 1 - BEGIN)
    found = []
    for number in range(TRIES):
        used = draw.permutation(np.flatnonzero(apart != number))[:CLUSTERED]
        unusual = u[used][is_unusual[used]]
        count = min(max(2, int(CLUSTERS * model.known.sum())), len(unusual) // SMALLEST)
        if count == 0:
            return nothing
        first = _k_means(unusual, count, draw)
        found.append(_clusters(model, alone["labeled"][model.known], u[used], first))
    return found


def _k_means(z: Array, count: int, draw: np.random.Generator) -> Array:
    """Return the means of a clustering."""
    means = z[draw.choice(len(z), count, replace=False)]
    for _ in range(10):
        nearest = ((means**2).sum(1) - 2 * z @ means.T).argmin(1)
        means, _ = _means_of(z, nearest, means, np.zeros(count))
    return means


def _clusters(model: _Model, labeled: Array, u: Array, others: Array) -> Array:
    """Refine other clusters by k-means in the metric of the covariance.

    Known classes take part, with their means as members as often as they have labels.
    """
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
    """Return the mean and size of each cluster; its first mean counts as so many images."""
    members = (cluster == np.arange(len(first))[:, None]).astype(float)
    sizes = counts + members.sum(1)
    sums = counts[:, None] * first + members @ z
    means = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], first)
    return means, sizes


def _without_taken(learned: State, folds: list[_Fold]) -> Array:
    """Return the other clusters, without those that claim many images of a known class."""
    shares = np.zeros((len(learned["labeled"]), len(learned["others"])))
    for fold in folds:
        model = _Model(fold.rest | {"others": learned["others"]})
        own = model.logits(fold.z)[np.arange(len(fold.z)), fold.y]
        np.add.at(shares, fold.y, model.other_logits(fold.z) > own[:, None])
    counts = np.bincount([label for fold in folds for label in fold.y], minlength=len(shares))
    shares /= np.maximum(counts, 1)[:, None]
    return np.asarray(learned["others"][shares.max(axis=0, initial=0.0) <= TAKEN])


def _temperature(logits: Array, labels: NDArray[np.int64], usual: float) -> float:
    """Return the most probable temperature given the labels, with a prior around the usual one.

    Without the prior it would be the lowest one if a few images are all classified correctly.
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
    """Return the temperature that photographs usually need; logits grow with the dimension."""
    return max(1.0, dimension / USUAL)


def _softmax(logits: Array) -> Array:
    shares: Array = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return shares


def _compress(features: NDArray[np.float32], power: float) -> Array:
    wide = features.astype(np.float64)
    return np.asarray(np.sign(wide) * np.abs(wide) ** power)
