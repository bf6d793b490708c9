"""The whole loss of every training, by loops; and the rate that the calibrated detector keeps.

Each loss is asked for as the engine asks: from `Method.trainings`, with what the training's own
score functions say of the batch. The networks have more outputs than classes were seen.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import make_dataset
from slow import (
    SIZES,
    TASK,
    Row,
    Rows,
    builder,
    mean_divergence,
    random_batch,
    slow_consistency,
    slow_supervised,
    softmax,
)
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.engine import Engine
from distillmatch.engine.data import TaskData
from distillmatch.methods import Batch, Method, Passes, TaskInfo, Training, make_method
from distillmatch.methods.detector import EPSILONS, perturbed_score
from distillmatch.networks import Detector
from distillmatch.streams import build_stream
from distillmatch.views import view_key, weak_views

FIRST = TaskInfo(number=0, sizes=SIZES[:1], last=False, coreset=False)
WITH_CORESET = replace(TASK, coreset=True)
OUTPUTS = 9
COUNTS = [1.0, 2.0, 3.0, 0.0, 59.0, 12.0, 7.0]
"""Labels of each class in a made-up pass; class 3 has none, so that its weight is the cap."""


class LabelCounts:
    """A pass through data that has labels to count and nothing to score."""

    def __init__(self, counts: Row) -> None:
        self.counts = counts

    def score(self, score: Any, over: str, views: int = 1) -> dict[str, Tensor]:
        raise AssertionError("there is nothing to score")

    def labels(self, over: str) -> Tensor:
        raise AssertionError("the labels are counted already")

    def label_counts(self, over: str) -> Tensor:
        return torch.tensor(self.counts, dtype=torch.float64)


def slow_weights(counts: Row) -> Row:
    """Eq. 3 with the release's smoothing and cap."""
    smoothed = [count + 1 for count in counts]
    return [min(10.0, sum(smoothed) / len(smoothed) / count) for count in smoothed]


def slow_label_weights(counts: Row) -> Row:
    """The same among the classes that have labels; the others have the cap."""
    of_present = slow_weights([count for count in counts if count])
    return [of_present.pop(0) if count else 10.0 for count in counts]


def method_of(**options: Any) -> Method:
    """A method in its third task: with frozen models, and all that a detector needs."""
    method = make_method(RunConfig(**options), builder(OUTPUTS))
    method.networks["past"] = method.build("past")
    method.networks["past detector"] = method.build("past detector", "cosine")
    method.values |= {"epsilon": 0.0, "threshold": 0.0}
    return method


def training_of(method: Method, name: str = "classifier", task: TaskInfo = TASK) -> Training:
    (training,) = [one for one in method.trainings(task) if one.name == name]
    return training


def batch_for(training: Training, seed: int = 0, classes: range = range(7)) -> Batch:
    """The views that a training asked for; the labels are all of some classes, in turn."""
    drawn = random_batch(seed, labeled=8, unlabeled=6)
    unlabeled = drawn.unlabeled if training.unlabeled else drawn.unlabeled[:0]
    with torch.no_grad():
        return Batch(
            images=drawn.images,
            labels=torch.tensor([classes[n % len(classes)] for n in range(8)]),
            unlabeled=unlabeled,
            strong=drawn.strong if training.strong else None,
            of_images=training.score_images(drawn.images) if training.score_images else {},
            of_unlabeled=training.score_unlabeled(unlabeled) if training.score_unlabeled else {},
        )


def loss_of(training: Training, batch: Batch) -> float:
    """The loss in training mode, in which the images of one forward depend on each other."""
    training.network.train(training.parameters == "all")
    return float(training.loss(batch).detach())


def rows(network: nn.Module, *images: Tensor, seen: int = 7) -> Rows:
    """Logits of images that go through the network together, cut to the seen classes."""
    with torch.no_grad():
        cut: Rows = network(torch.cat(images))[:, :seen].tolist()
    return cut


def mean_supervised(batch: Batch, labeled: Rows, weights: Row | None = None) -> float:
    return slow_supervised(batch, weights or [1.0] * 7, labeled) / len(labeled)


def slow_distillation(teacher: Rows, student: Rows, shares: str, temperature: float) -> float:
    """Eq. 1 for the two past tasks, of two and three classes of the seven seen."""
    small = mean_divergence(teacher, student, 0, 2, temperature)
    large = mean_divergence(teacher, student, 2, 5, temperature)
    return (small + large) / 2 if shares == "equal" else (2 * small + 3 * large) / 7


def slow_calibration(others: Rows) -> float:
    """How far a teacher of two new classes is from knowing nothing, on the mean image."""
    total = 0.0
    for row in others:
        total -= sum(math.log(p) for p in softmax(row[5:])) / 2 + math.log(2)
    return total / len(others)


@pytest.mark.parametrize("seed", [0, 1])
def test_base_learns_by_cross_entropy_alone(seed: int) -> None:
    training = training_of(method_of(method="base"))
    batch = batch_for(training, seed)
    loss = loss_of(training, batch)
    assert not training.unlabeled and not batch.of_images
    labeled = rows(training.network, batch.images)
    assert loss == pytest.approx(mean_supervised(batch, labeled), rel=1e-9)


@pytest.mark.parametrize("temperature", [2.0, 3.0])
@pytest.mark.parametrize("shares", ["equal", "class-share"])
def test_base_with_distillation_adds_equation_1_over_all_images(
    shares: str, temperature: float
) -> None:
    method = method_of(
        method="base",
        base_distillation=True,
        distillation_shares=shares,
        temperature=temperature,
    )
    training = training_of(method)
    batch = batch_for(training)
    loss = loss_of(training, batch)
    student = rows(training.network, batch.images, batch.unlabeled)
    teacher = rows(method.networks["past"], batch.images, batch.unlabeled)
    slow = mean_supervised(batch, student[:8])
    slow += slow_distillation(teacher, student, shares, temperature)
    assert loss == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("shares", ["equal", "class-share"])
@pytest.mark.parametrize(("scale", "factor"), [("one", 1), ("temperature-squared", 9)])
def test_the_e2e_loss_is_balanced_cross_entropy_and_equation_1(
    scale: str, factor: float, shares: str, balanced: bool
) -> None:
    method = method_of(
        method="e2e",
        distillation_shares=shares,
        distillation_scale=scale,
        class_balancing=balanced,
        temperature=3.0,
    )
    training = training_of(method)
    assert training.before is not None
    training.before(LabelCounts(COUNTS))
    batch = batch_for(training)
    loss = loss_of(training, batch)
    student = rows(training.network, batch.images, batch.unlabeled)
    teacher = rows(method.networks["past"], batch.images, batch.unlabeled)
    weights = slow_label_weights(COUNTS) if balanced else None
    slow = mean_supervised(batch, student[:8], weights)
    slow += factor * slow_distillation(teacher, student, shares, 3.0)
    assert loss == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize("temperature", [2.0, 3.0])
@pytest.mark.parametrize("distillation", ["per-task", "single"])
@pytest.mark.parametrize("shares", ["equal", "class-share"])
@pytest.mark.parametrize("scale", ["one", "temperature-squared"])
def test_the_dr_loss_distils_the_past_and_the_new_task(
    scale: str, shares: str, distillation: str, temperature: float
) -> None:
    method = method_of(
        method="dr",
        dr_distillation=distillation,
        temperature=temperature,
        distillation_shares=shares,
        distillation_scale=scale,
    )
    training = training_of(method)
    batch = batch_for(training)
    loss = loss_of(training, batch)
    student, past, new = (
        rows(network, batch.images, batch.unlabeled)
        for network in (training.network, method.networks["past"], method.networks["teacher"])
    )
    of_new = temperature**2 * mean_divergence(new, student, 5, 7, temperature)
    if distillation == "per-task":
        of_past = slow_distillation(past, student, shares, temperature)
    else:
        of_past = mean_divergence(past, student, 0, 5, temperature)
        of_past *= 5 / 7 if shares == "class-share" else 1
    if shares == "class-share":
        of_new *= 2 / 7
    if scale == "temperature-squared":
        of_past *= temperature**2
    slow = mean_supervised(batch, student[:8]) + of_past + of_new
    assert loss == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize("options", [{"method": "dr"}, {"method": "gd", "calibration": False}])
@pytest.mark.parametrize("classes", [range(5, 7), range(7)])
def test_the_uncalibrated_teacher_learns_the_new_classes_alone(
    options: dict[str, Any], classes: range
) -> None:
    training = training_of(method_of(**options), "teacher", WITH_CORESET)
    assert training.labeled == "new" and not training.unlabeled
    batch = batch_for(training, classes=classes)
    loss = loss_of(training, batch)
    slow = [
        -math.log(softmax(row[5:])[label - 5])
        for row, label in zip(
            rows(training.network, batch.images), batch.labels.tolist(), strict=True
        )
        if label >= 5
    ]
    assert loss == pytest.approx(sum(slow) / len(slow), rel=1e-9)


@pytest.mark.parametrize("classes", [range(5, 7), range(7), range(5)])
def test_the_calibrated_teacher_is_taught_to_know_nothing_of_other_images(classes: range) -> None:
    """With new classes alone, some stored images of past classes, and nothing but those."""
    training = training_of(method_of(method="gd"), "teacher", WITH_CORESET)
    assert training.labeled == "labeled" and training.unlabeled
    batch = batch_for(training, classes=classes)
    loss = loss_of(training, batch)
    logits = rows(training.network, batch.images, batch.unlabeled)
    labels = batch.labels.tolist()
    of_new = [
        -math.log(softmax(row[5:])[label - 5])
        for row, label in zip(logits[:8], labels, strict=True)
        if label >= 5
    ]
    stored = [row for row, label in zip(logits[:8], labels, strict=True) if label < 5]
    slow = sum(of_new) / max(1, len(of_new)) + slow_calibration(stored + logits[8:])
    assert loss == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("name", ["e2e", "gd", "dm"])
def test_fine_tuning_is_balanced_cross_entropy_over_all_seen_classes(
    name: str, balanced: bool
) -> None:
    method = method_of(method=name, coreset=10, class_balancing=balanced)
    training = training_of(method, "fine-tuning", WITH_CORESET)
    assert training.labeled == "labeled" and not training.unlabeled
    assert training.before is not None
    training.before(LabelCounts(COUNTS))
    batch = batch_for(training)
    loss = loss_of(training, batch)
    weights = slow_label_weights(COUNTS) if balanced else None
    slow = mean_supervised(batch, rows(training.network, batch.images), weights)
    assert loss == pytest.approx(slow, rel=1e-9)


def dm_detector(losses: str, accepted: int) -> tuple[Method, Training, Batch]:
    """The detector's training, its threshold such that so many of six images are accepted."""
    method = method_of(method="dm", coreset=10, detector_losses=losses)
    classifier = training_of(method, task=WITH_CORESET)
    training = training_of(method, "detector", WITH_CORESET)
    assert classifier.before is not None
    classifier.before(LabelCounts(COUNTS))
    batch = batch_for(training)
    past = method.networks["past detector"]
    assert isinstance(past, Detector)
    with torch.no_grad():
        scores = past.similarities(random_batch(0, 8, 6).unlabeled)[:, :5].amax(dim=1)
    ranked = [math.inf, *sorted(scores.tolist(), reverse=True)]
    method.values["threshold"] = ranked[accepted]
    return method, training, batch


@pytest.mark.parametrize("accepted", [0, 2, 6])
def test_the_detector_loss_is_equation_5_without_consistency(accepted: int) -> None:
    method, training, batch = dm_detector("labels-and-past", accepted)
    assert training.labeled == "first-half" and not training.strong
    loss = loss_of(training, batch)
    student = rows(training.network, batch.images, batch.unlabeled)
    labelers = rows(method.networks["past"], batch.unlabeled)
    past_detector = method.networks["past detector"]
    assert isinstance(past_detector, Detector)
    with torch.no_grad():
        similarities: Rows = past_detector.similarities(batch.unlabeled).tolist()
    weights = slow_weights(COUNTS)
    supervised = slow_supervised(batch, weights, student[:8])
    pseudo, believed = 0.0, 0
    for row, labeler, similarity in zip(student[8:], labelers, similarities, strict=True):
        if max(similarity[:5]) >= method.values["threshold"]:
            label = labeler.index(max(labeler[:5]))
            pseudo -= weights[label] * math.log(softmax(row)[label])
            believed += 1
    assert believed == accepted
    teacher = rows(past_detector, batch.images, batch.unlabeled)
    slow = (supervised + pseudo) / (8 + believed)
    slow += slow_distillation(teacher, student, "equal", 2.0)
    assert loss == pytest.approx(slow, rel=1e-9)


def test_a_detector_of_labels_alone_learns_by_weighted_cross_entropy() -> None:
    _, training, batch = dm_detector("labels", 6)
    assert not training.unlabeled
    loss = loss_of(training, batch)
    labeled = rows(training.network, batch.images)
    slow = mean_supervised(batch, labeled, slow_weights(COUNTS))
    assert loss == pytest.approx(slow, rel=1e-9)


def test_the_offline_bound_learns_by_cross_entropy_alone() -> None:
    training = training_of(method_of(method="offline"))
    batch = batch_for(training)
    loss = loss_of(training, batch)
    assert not training.unlabeled
    labeled = rows(training.network, batch.images)
    assert loss == pytest.approx(mean_supervised(batch, labeled), rel=1e-9)


def some_of(weak: Rows, threshold: float) -> bool:
    """Whether some weak views are confident and some are not."""
    return 0 < sum(max(softmax(row)) >= threshold for row in weak) < len(weak)


@pytest.mark.parametrize(("task", "threshold"), [(FIRST, 0.6), (TASK, 0.205)])
@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_the_offline_bound_with_unlabelled_images_adds_equation_4(
    weight: float, task: TaskInfo, threshold: float
) -> None:
    method = method_of(
        method="offline-unlabeled", consistency_weight=weight, consistency_threshold=threshold
    )
    training = training_of(method, task=task)
    batch = batch_for(training, classes=range(task.seen))
    assert batch.strong is not None
    loss = loss_of(training, batch)
    weak = rows(training.network, batch.images, batch.unlabeled, seen=task.seen)
    strong = rows(training.network, batch.strong, seen=task.seen)
    assert some_of(weak[8:], threshold)
    slow = mean_supervised(batch, weak[:8])
    slow += weight * slow_consistency(weak[8:], strong, threshold)
    assert loss == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize("name", ["base", "e2e", "dr", "gd", "dm"])
def test_the_first_task_is_learned_from_labels_alone(name: str) -> None:
    """There is nobody to distil from and no class that an unlabelled image could be of."""
    counts = [9.0, 2.0]
    method = make_method(
        RunConfig(method=name, base_distillation=True, coreset=10), builder(OUTPUTS)
    )
    trainings = method.trainings(FIRST)
    assert [one.name for one in trainings] == ["classifier"] + ["detector"] * (name == "dm")
    for training in trainings:
        assert not training.unlabeled and not training.strong
        assert training.score_images is None and training.score_unlabeled is None
        if training.before is not None:
            training.before(LabelCounts(counts))
        batch = batch_for(training, classes=range(2))
        loss = loss_of(training, batch)
        labeled = rows(training.network, batch.images, seen=2)
        weights = slow_weights(counts) if name in ("e2e", "gd", "dm") else None
        assert loss == pytest.approx(mean_supervised(batch, labeled, weights), rel=1e-9)


def test_dm_is_consistent_from_the_first_task_on_if_asked() -> None:
    method = method_of(method="dm", consistency_from="first-task", consistency_threshold=0.57)
    training = training_of(method, task=FIRST)
    assert training.before is not None and training.unlabeled
    training.before(LabelCounts([9.0, 2.0]))
    batch = batch_for(training, classes=range(2))
    assert batch.strong is not None
    loss = loss_of(training, batch)
    weak = rows(training.network, batch.images, batch.unlabeled, seen=2)
    strong = rows(training.network, batch.strong, seen=2)
    slow = mean_supervised(batch, weak[:8], slow_weights([9.0, 2.0]))
    assert some_of(weak[8:], 0.57)
    slow += slow_consistency(weak[8:], strong, 0.57)
    assert loss == pytest.approx(slow, rel=1e-9)


@pytest.fixture(scope="module")
def detector_at_rest() -> tuple[Method, Training, TaskData]:
    """A method after its first task, its detector's training, and data with 300 held-out images."""
    config = RunConfig(
        network="wrn-10-1",
        epochs=2,
        tasks=2,
        labels_per_class=200,
        unlabeled_per_task=0,
        device="cpu",
    )
    dataset = make_dataset(classes=6, per_class=202, noise=True)
    engine = Engine(config, dataset, build_stream(dataset, config))
    trainings, seen = engine.method.trainings, list[TaskData]()

    def watch(training: Training) -> Training:
        def after(passes: Passes) -> None:
            assert training.after is not None and isinstance(passes, TaskData)
            training.after(passes)
            seen.append(passes)

        return replace(training, after=after) if training.name == "detector" else training

    def watched(task: TaskInfo) -> list[Training]:
        return [watch(training) for training in trainings(task)]

    engine.method.trainings = watched  # type: ignore[method-assign]
    next(engine.run())
    (data,) = seen
    assert len(data.sets["second-half"]) == 300
    return engine.method, trainings(engine.task_info(0))[-1], data


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5, 0.9])
def test_the_calibrated_threshold_gives_the_asked_rate_on_fresh_views_of_held_out_images(
    detector_at_rest: tuple[Method, Training, TaskData], rate: float
) -> None:
    method, training, data = detector_at_rest
    method.config = RunConfig(true_positive_rate=rate)
    assert training.after is not None
    training.after(data)
    assert method.values["epsilon"] in EPSILONS
    detector = method.networks["past detector"]
    assert isinstance(detector, Detector)
    scores = []
    for view in range(8):
        key = view_key(data.seed, "other than those of the calibration", view)
        views = weak_views(data.sets["second-half"].pixels, key, data.normalization)
        scores.append(perturbed_score(detector, views, data.classes, method.values["epsilon"]))
    reached = (torch.cat(scores) >= method.values["threshold"]).double().mean()
    assert float(reached) == pytest.approx(rate, abs=0.03)
