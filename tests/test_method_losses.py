"""The whole loss of every training but those of DM alone, by loops."""

import math
from typing import Any

import pytest
from slow import TASK, Rows, builder, mean_divergence, slow_consistency, softmax
from trainings import (
    COUNTS,
    FIRST,
    OUTPUTS,
    WITH_CORESET,
    LabelCounts,
    batch_for,
    loss_of,
    mean_supervised,
    method_of,
    rows,
    slow_distillation,
    slow_label_weights,
    slow_weights,
    some_of,
    training_of,
)

from distillmatch.config import RunConfig
from distillmatch.methods import TaskInfo, make_method


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


def test_the_offline_bound_learns_by_cross_entropy_alone() -> None:
    training = training_of(method_of(method="offline"))
    batch = batch_for(training)
    loss = loss_of(training, batch)
    assert not training.unlabeled
    labeled = rows(training.network, batch.images)
    assert loss == pytest.approx(mean_supervised(batch, labeled), rel=1e-9)


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
