"""The classifier on frozen features, against slow plain computations."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from distillmatch.learner.feature_classifier import (
    AXES,
    CAUTION,
    SHRINKAGE,
    TRIES,
    FeatureClassifier,
    _Model,
)

Features = NDArray[np.float32]
Labels = NDArray[np.int64]

DIMENSION = 6
NONE = np.zeros((0, DIMENSION), np.float32)


def drawn(classes: range, count: int, seed: int, spread: float = 0.3) -> tuple[Features, Labels]:
    """Return features around a place of each class that no seed changes, and their labels."""
    places = np.random.default_rng(5).uniform(1, 4, (20, DIMENSION))
    noise = np.random.default_rng(seed).normal(0, spread, (len(classes) * count, DIMENSION))
    labels = np.repeat(np.array(classes, np.int64), count)
    return np.abs(places[labels] + noise).astype(np.float32), labels


def plain_scores(
    x: Features, y: Labels, image: Features, others: Features | None = None
) -> tuple[list[float], float, float]:
    """Return logits of one image, without temperature, its odds, and its angle."""
    z = np.sqrt(x.astype(np.float64))
    means = [z[y == c].mean(0) for c in range(y.max() + 1)]
    scatter = np.zeros((x.shape[1], x.shape[1]))
    for row, label in zip(z, y, strict=True):
        scatter += np.outer(row - means[label], row - means[label])
    covariance = scatter / (len(y) - len(means))
    even = np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    inverse = np.linalg.inv((1 - SHRINKAGE) * covariance + SHRINKAGE * even)
    place, center = np.sqrt(image.astype(np.float64)), np.mean(means, axis=0)
    chance = x.shape[1] / np.bincount(y)

    def logit(mean: NDArray[np.float64]) -> float:
        moved = mean - center
        return float((place - center) @ inverse @ moved - moved @ inverse @ moved / 2)

    logits = [logit(m) + (c - chance.mean()) / 2 for m, c in zip(means, chance, strict=True)]
    t = max(1.0, x.shape[1] / 20)
    against = (
        1.0 + sum(math.exp(logit(one) / t) for one in ([] if others is None else others)) / TRIES
    )
    odds: float = math.log(sum(math.exp(one / t) for one in logits)) - math.log(against)
    cosines = [float(place @ m / np.linalg.norm(place) / np.linalg.norm(m)) for m in means]
    return logits, odds, 1.0 - max(cosines)


def test_the_logits_are_those_of_a_linear_discriminant_whatever_the_tasks() -> None:
    x, y = drawn(range(4), 6, 0)
    x, y = x[:21], y[:21]  # the last class has three
    at, _ = drawn(range(4), 3, 1)
    known = FeatureClassifier.empty(DIMENSION)
    for chosen, classes in ((y < 2, 2), ((y == 2) | (np.arange(21) < 3), 3), (y == 3, 4)):
        again = chosen & (np.arange(21) < 3) & (classes == 2)  # three images return a month later
        known, _ = known.after(x[chosen & ~again], y[chosen & ~again], classes, NONE, 0)
    expected = np.array([plain_scores(x, y, image)[0] for image in at])
    expected /= known.tensors["temperature"][0]
    np.testing.assert_allclose(known.logits(at), expected, rtol=1e-3, atol=1e-3)
    assert len(known.tensors["scatter_axes"]) <= min(DIMENSION, AXES)


def test_a_class_of_one_label_beside_classes_of_many_is_still_recognized() -> None:
    draw = np.random.default_rng(3)
    places = draw.normal(0, 0.25, (6, 200))

    def images(counts: list[int]) -> tuple[Features, Labels]:
        labels = np.repeat(np.arange(6), counts)
        return (places[labels] + draw.normal(0, 1, (len(labels), 200))).astype(np.float32), labels

    known = FeatureClassifier.empty(200)
    known, _ = known.after(*images([40, 40, 40, 1, 1, 1]), 6, np.zeros((0, 200), np.float32), 0)
    asked, of_class = images([50] * 6)
    answers = known.logits(asked).argmax(1)
    assert (answers[of_class < 3] == of_class[of_class < 3]).mean() > 0.6
    assert (answers[of_class >= 3] == of_class[of_class >= 3]).mean() > 0.4


def test_the_threshold_comes_from_images_scored_without_learning_them() -> None:
    x, y = drawn(range(3), 5, 0)
    known, _ = FeatureClassifier.empty(DIMENSION).after(x, y, 3, NONE, 0)
    scores = []
    for fold in range(5):
        kept = np.arange(15) % 5 != fold
        scores += [plain_scores(x[kept], y[kept], image)[1:] for image in x[~kept]]
    np.testing.assert_allclose(known.tensors["scores"], scores, rtol=1e-3, atol=1e-5)

    def familiarity(odds: float, angle: float) -> float:
        o, a = (np.array([odds, angle]) - np.mean(scores, axis=0)) / np.std(scores, axis=0)
        return float(min(o - a / 2, 1.25 - a))

    of_known = [familiarity(*one) for one in scores]
    share = 0.1 - CAUTION * math.sqrt(0.9 * 0.1 / 15)
    assert known.threshold(0.9) == pytest.approx(np.quantile(of_known, share), rel=1e-3)
    expected = familiarity(*plain_scores(x, y, x[4])[1:])
    assert known.familiarity(x[4:5])[0] == pytest.approx(expected, rel=1e-2)


def world(classes: range, count: int, seed: int) -> Features:
    """Draw images of classes in many dimensions, as networks give them."""
    places = np.random.default_rng(5).uniform(0.8, 1.4, (20, 64))
    noise = np.random.default_rng(seed).normal(0, 0.45, (len(classes) * count, 64))
    labels = np.repeat(np.array(classes, np.int64), count)
    return np.abs(places[labels] + noise).astype(np.float32)


def rejected(known: FeatureClassifier, images: Features) -> float:
    return float(np.mean(known.familiarity(images) < known.threshold(0.95)))


def test_classes_that_the_camera_shows_are_rejected_until_they_are_learned() -> None:
    x, y = world(range(8), 20, 0), np.repeat(np.arange(8), 20)
    unknown, learned = world(range(8, 12), 60, 1), world(range(8), 60, 2)
    nothing = np.zeros((0, 64), np.float32)
    alone, _ = FeatureClassifier.empty(64).after(x, y, 8, nothing, 0)
    helped, _ = FeatureClassifier.empty(64).after(
        x, y, 8, np.concatenate([world(range(8), 30, 3), world(range(8, 12), 30, 4)]), 0
    )
    same, _ = FeatureClassifier.empty(64).after(x, y, 8, world(range(8), 30, 3), 0)
    assert not len(same.tensors["others"]) and len(helped.tensors["others"])
    assert rejected(helped, unknown) > rejected(alone, unknown) + 0.1
    assert rejected(helped, learned) < 0.12 and rejected(alone, learned) < 0.12
    far = np.random.default_rng(6).exponential(1, (100, 64)).astype(np.float32)
    assert rejected(helped, far) > 0.95 and rejected(alone, far) > 0.95
    new = world(range(8, 12), 20, 7)
    after, _ = helped.after(new, np.repeat(np.arange(8, 12), 20), 12, nothing, 0)
    assert len(after.tensors["others"]) < len(helped.tensors["others"])
    assert rejected(after, unknown) < 0.15


def test_odds_are_against_the_clusters_of_other_images() -> None:
    x, y = drawn(range(3), 8, 0)
    known, _ = FeatureClassifier.empty(DIMENSION).after(x, y, 3, NONE, 0)
    others = np.sqrt(drawn(range(5, 8), 1, 4)[0])
    model = _Model(
        {key: value.astype(np.float64) for key, value in known.tensors.items()}
        | {"others": others.astype(np.float64)}
    )
    at, _ = drawn(range(8), 2, 5)
    expected = [plain_scores(x, y, image, others)[1:] for image in at]
    np.testing.assert_allclose(model.scores(np.sqrt(at.astype(float))), expected, rtol=1e-3)


def test_a_state_without_angles_loads_without_its_scores() -> None:
    x, y = drawn(range(3), 8, 0)
    known, _ = FeatureClassifier.empty(DIMENSION).after(x, y, 3, NONE, 0)
    earlier = {key: value for key, value in known.tensors.items() if key != "angles"}
    restored = FeatureClassifier.restored(earlier)
    assert not restored.has_scores and known.has_scores
    np.testing.assert_array_equal(restored.logits(x), known.logits(x))
    again, _ = restored.after(*drawn(range(3), 8, 1), 3, NONE, 0)
    assert again.has_scores


def test_unlabeled_images_of_the_classes_help_and_others_do_no_harm() -> None:
    accuracy = np.zeros((5, 3))
    test, truth = drawn(range(4), 200, 99, 0.6)
    for draw in range(5):
        x, y = drawn(range(4), 3, 2 * draw, 0.6)
        seen, _ = drawn(range(4), 60, 2 * draw + 1, 0.6)
        far = np.random.default_rng(draw).uniform(0, 80, (80, DIMENSION)).astype(np.float32)
        for case, unlabeled in enumerate((NONE, seen, far)):
            known, judged = FeatureClassifier.empty(DIMENSION).after(x, y, 4, unlabeled, 0)
            accuracy[draw, case] = (known.logits(test).argmax(1) == truth).mean()
            assert judged.pseudo_labels.shape == judged.accepted.shape == (len(unlabeled),)
    none, with_seen, with_far = accuracy.mean(0)
    assert with_seen > none + 0.002
    assert with_far > none - 0.02


def test_unlabeled_images_count_for_what_their_error_is_worth() -> None:
    x, y = drawn(range(3), 8, 0)
    unlabeled, _ = drawn(range(3), 40, 1)
    known, _ = FeatureClassifier.empty(DIMENSION).after(x, y, 3, unlabeled, 0)
    state = {key: tensor.astype(np.float64) for key, tensor in known.tensors.items()}
    z, variance = np.sqrt(x.astype(np.float64)), state["scatter"][0] / state["scatter"][1]
    means = np.empty((3, DIMENSION))
    for c in range(3):
        labeled, found, count = (
            z[y == c].mean(0),
            state["unlabeled_means"][c],
            state["unlabeled"][c],
        )
        bias = max(0.0, np.sum((labeled - found) ** 2) - variance * (1 / 8 + 1 / count))
        weight = min(8.0, count, variance / (variance / count + bias))
        means[c] = (8 * labeled + weight * found) / (8 + weight)
    _, weights, biases = known.linear()
    away = means - means.mean(0)
    # The boundary of two classes of a discriminant passes between their means.
    for one, two in ((0, 1), (0, 2), (1, 2)):
        middle = (means[one] + means[two]) / 2
        logits = weights @ middle + biases
        assert logits[one] == pytest.approx(logits[two], abs=1e-3 * np.abs(weights @ away.T).max())


@pytest.mark.parametrize("months", [(6,), (3, 3), (1, 1, 1, 1, 1, 1)])
def test_about_the_asked_share_of_known_images_reaches_the_threshold(
    months: tuple[int, ...],
) -> None:
    test, _ = drawn(range(6), 100, 99)
    shares = []
    for draw in range(4):
        known, first = FeatureClassifier.empty(DIMENSION), 0
        for month, count in enumerate(months):
            x, y = drawn(range(first, first + count), 20, 10 * draw + month)
            first += count
            known, _ = known.after(x, y, first, NONE, 0)
        familiarity = known.familiarity(test)
        shares.append([(familiarity >= known.threshold(accept)).mean() for accept in (0.8, 0.95)])
    np.testing.assert_allclose(np.mean(shares, 0), [0.8, 0.95], atol=0.08)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("kind", ["drawn", "constant", "negative", "wide"])
def test_few_or_degenerate_images_give_finite_scores(kind: str, classes: int, count: int) -> None:
    x, y = drawn(range(classes), count, 0)
    if kind == "constant":
        x = np.ones_like(x)
    if kind == "negative":
        x = x - 3
    if kind == "wide":
        x = np.repeat(x, 300, axis=1) * np.float32(1e4)
    known = FeatureClassifier.empty(x.shape[1])
    for unlabeled in (x[:0], x):
        known, _ = known.after(x, y, classes, unlabeled, 0)
        assert known.logits(x).shape == (len(x), classes)
        assert np.isfinite(known.logits(x)).all()
        assert np.isfinite(known.familiarity(x)).all()
        assert np.isfinite(known.threshold(0.95))
        assert known.familiarity(x[:0]).shape == (0,)
    if kind == "drawn":
        assert (known.logits(x).argmax(1) == y).all()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_labels_that_are_all_classified_correctly_make_no_probability_certain(
    count: int,
) -> None:
    """One image says little of its class, but all held-out images are classified correctly."""
    rng = np.random.default_rng(0)
    places = rng.uniform(0.9, 1.1, (3, 400))
    y = np.repeat(np.arange(3), count)
    x = (places[y] + rng.normal(0, 0.05, (len(y), 400))).astype(np.float32)
    known, _ = FeatureClassifier.empty(400).after(x, y, 3, np.zeros((0, 400), np.float32), 0)
    assert known.logits(x).argmax(1).tolist() == y.tolist()
    logits = known.logits(places.mean(0, keepdims=True).astype(np.float32))[0]
    assert np.ptp(logits) < 5, "an image between the classes is of none for certain"


def test_a_class_without_images_is_never_predicted() -> None:
    x, y = drawn(range(2), 3, 0)
    known, _ = FeatureClassifier.empty(DIMENSION).after(x, y, 4, x, 0)
    assert known.logits(x).shape == (6, 4)
    assert set(known.logits(x).argmax(1)) == {0, 1}


def test_the_same_tasks_give_the_same_state_also_from_its_tensors() -> None:
    x, y = drawn(range(4), 5, 0)
    u, _ = drawn(range(4), 20, 1)

    def learned(through_tensors: bool) -> FeatureClassifier:
        known, _ = FeatureClassifier.empty(DIMENSION).after(x[:10], y[:10], 2, u, 0)
        if through_tensors:
            known = FeatureClassifier({k: v.copy() for k, v in known.tensors.items()})
        return known.after(x[10:], y[10:], 4, u, 0)[0]

    for key, tensor in learned(False).tensors.items():
        np.testing.assert_array_equal(tensor, learned(True).tensors[key], err_msg=key)
    assert learned(False).bytes == sum(t.nbytes for t in learned(True).tensors.values())
