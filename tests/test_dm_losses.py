"""DM's own losses, by loops, and the rate that its calibrated detector keeps."""

import math
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from conftest import make_dataset
from slow import Rows, random_batch, slow_consistency, slow_supervised, softmax
from trainings import (
    COUNTS,
    FIRST,
    WITH_CORESET,
    LabelCounts,
    batch_for,
    loss_of,
    mean_supervised,
    method_of,
    rows,
    slow_distillation,
    slow_weights,
    some_of,
    training_of,
)

from distillmatch.config import RunConfig
from distillmatch.engine import Engine
from distillmatch.engine.data import TaskData
from distillmatch.methods import Batch, Method, Passes, TaskInfo, Training
from distillmatch.methods.detector import EPSILONS, perturbed_scores, true_positive_rate
from distillmatch.networks import Detector
from distillmatch.streams import build_stream
from distillmatch.views import view_key, weak_views


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
    assert method.values["epsilon"] in EPSILONS["highest"]
    detector = method.networks["past detector"]
    assert isinstance(detector, Detector)
    scores = []
    for view in range(8):
        key = view_key(data.seed, "other than those of the calibration", view)
        views = weak_views(data.sets["second-half"].pixels, key, data.normalization)
        scores.append(
            perturbed_scores(detector, views, data.classes, [method.values["epsilon"]])[:, 0]
        )
    reached = (torch.cat(scores) >= method.values["threshold"]).double().mean()
    assert float(reached) == pytest.approx(rate, abs=0.03)


def test_the_releases_perturbation_is_half_of_the_one_by_which_scores_are_lowest_and_never_none(
    detector_at_rest: tuple[Method, Training, TaskData],
) -> None:
    method, training, data = detector_at_rest
    method.config = RunConfig(epsilon_rule="lowest-halved")
    assert training.after is not None
    training.after(data)
    detector = method.networks["past detector"]
    assert isinstance(detector, Detector)

    def mean_score(epsilon: float) -> float:
        def score(images: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"": perturbed_scores(detector, images, data.classes, [epsilon])}

        return float(data.score(score, "second-half")[""].mean())

    # Of the sizes in the authors' release, in which there is no 0.
    lowest = min([0.0025, 0.005, 0.001, 0.002, 0.004, 0.08], key=mean_score)
    assert method.values["epsilon"] == lowest / 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [1 / 2, 2 / 3, 3 / 4, 4 / 5]),
        ({"true_positive_rate": 0.7}, [0.7, 0.7, 3 / 4, 4 / 5]),
        ({"coreset": 4}, [1 / 2, 2 / 3, 3 / 4, 4 / 5]),
    ],
)
def test_a_growing_rate_follows_the_tasks_learned(
    given: dict[str, Any], expected: list[float]
) -> None:
    config = RunConfig(true_positive_rate_rule="growing", **given)
    assert [true_positive_rate(config, n) for n in range(1, 5)] == pytest.approx(expected)
    fixed = config.replace(true_positive_rate_rule="fixed")
    assert len({true_positive_rate(fixed, n) for n in range(1, 5)}) == 1


def test_a_detector_is_calibrated_to_the_growing_rate(
    detector_at_rest: tuple[Method, Training, TaskData],
) -> None:
    method, training, data = detector_at_rest
    assert training.after is not None
    thresholds = []
    asked: list[tuple[float, Literal["fixed", "growing"]]] = [
        (0.1, "growing"), (0.5, "fixed"), (0.1, "fixed"),
    ]  # fmt: skip
    for rate, rule in asked:
        method.config = RunConfig(true_positive_rate=rate, true_positive_rate_rule=rule)
        training.after(data)
        thresholds.append(method.values["threshold"])
    assert thresholds[0] == thresholds[1] < thresholds[2]
