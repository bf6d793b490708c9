"""Labels that are learned by strong views too, by loops: in DM, then in all other methods."""

import math
from typing import Any

import pytest
import torch
from slow import TASK, Row, Rows, slow_consistency, slow_supervised, softmax
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
    slow_label_weights,
    slow_weights,
    some_of,
    training_of,
)

from distillmatch.config import RunConfig
from distillmatch.methods import Batch, Method, TaskInfo, Training
from distillmatch.methods.forwards import forward_views
from distillmatch.suite.identity import bound_config, run_name

BOTH = "labels-and-pseudo-labels"


def dm_of(task: TaskInfo, counts: Row, **options: Any) -> tuple[Method, Training, Batch]:
    """DM that accepts every image, with class weights by given counts of labels."""
    method = method_of(method="dm", gate="everything", coreset=10, **options)
    training = training_of(method, task=task)
    assert training.before is not None
    training.before(LabelCounts(counts))
    return method, training, batch_for(training, classes=range(task.seen))


def test_the_first_task_is_learned_by_both_views_of_labelled_images() -> None:
    counts = [9.0, 2.0]
    _, training, batch = dm_of(FIRST, counts, strong_labels=BOTH)
    assert not training.unlabeled and not training.strong and training.strong_labeled
    assert batch.strong_images is not None
    loss = loss_of(training, batch)
    slow = 0.0
    for views in (batch.images, batch.strong_images):
        # Each kind of views is normalized by itself.
        logits = rows(training.network, views, seen=2)
        slow += slow_supervised(batch, slow_weights(counts), logits) / 8 / 2
    assert loss == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize("targets", ["hard", "soft"])
@pytest.mark.parametrize("strong_labels", ["labels", BOTH])
@pytest.mark.parametrize("consistency", [True, False])
def test_labels_weigh_half_in_each_view_that_they_are_learned_by(
    consistency: bool, strong_labels: str, targets: str
) -> None:
    method, training, batch = dm_of(
        WITH_CORESET,
        COUNTS,
        strong_labels=strong_labels,
        pseudo_label_targets=targets,
        consistency=consistency,
        consistency_threshold=0.2,
    )
    assert batch.strong_images is not None
    loss = loss_of(training, batch)
    weak = rows(training.network, batch.images, batch.unlabeled)
    guesses = [softmax(row[:5]) for row in rows(method.networks["past"], batch.unlabeled)]
    weights = slow_weights(COUNTS)
    if batch.strong is None:
        assert strong_labels == "labels" and not consistency
        strong_images = rows(training.network, batch.strong_images)
    else:
        both = rows(training.network, batch.strong, batch.strong_images)
        strong, strong_images = both[:6], both[6:]
    by_views = [weak[8:], weak[8:] if strong_labels == "labels" else strong]
    slow = slow_supervised(batch, weights, weak[:8]) / 2
    slow += slow_supervised(batch, weights, strong_images) / 2
    slow += sum(slow_pseudo(logits, guesses, weights, targets) for logits in by_views) / 2
    slow /= 8 + 6
    slow += slow_distillation(
        rows(method.networks["past"], batch.images, batch.unlabeled), weak, "equal", 2.0
    )
    if consistency:
        assert some_of(weak[8:], 0.2)
        slow += slow_consistency(weak[8:], strong, 0.2)
    assert loss == pytest.approx(slow, rel=1e-9)


def slow_pseudo(logits: Rows, guesses: Rows, weights: Row, targets: str) -> float:
    """Eq. 7 of images that are all accepted, with hard or soft targets."""
    total = 0.0
    for row, guess in zip(logits, guesses, strict=True):
        label, said = guess.index(max(guess)), softmax(row)
        taught = guess if targets == "soft" else [float(k == label) for k in range(5)]
        total -= weights[label] * sum(t * math.log(said[k]) for k, t in enumerate(taught))
    return total


@pytest.mark.parametrize("statistics", ["together", "unlabeled"])
def test_strong_views_of_labelled_images_are_normalized_as_those_of_unlabelled_ones(
    statistics: str,
) -> None:
    _, training, batch = dm_of(
        WITH_CORESET,
        COUNTS,
        strong_labels="labels",
        strong_statistics=statistics,
        consistency_weight=0.0,
        distillation=False,
        pseudo_labels=False,
    )
    assert batch.strong is not None and batch.strong_images is not None
    loss = loss_of(training, batch)
    strong = batch.strong, batch.strong_images
    if statistics == "together":
        weak = together = rows(training.network, batch.images, batch.unlabeled, *strong)
    else:
        together = rows(training.network, batch.unlabeled, *strong)
        weak = rows(training.network, batch.images, batch.unlabeled)
    weights = slow_weights(COUNTS)
    slow = slow_supervised(batch, weights, weak[:8]) / 8 / 2
    slow += slow_supervised(batch, weights, together[-8:]) / 8 / 2
    assert loss == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize("task", [FIRST, TASK])
def test_strong_views_of_labelled_images_leave_the_running_statistics_alone(task: TaskInfo) -> None:
    _, training, batch = dm_of(task, COUNTS[: task.seen], strong_labels=BOTH)
    network = training.network.train()
    start = {key: value.clone() for key, value in network.state_dict().items()}
    with torch.no_grad():
        network(torch.cat([batch.images, batch.unlabeled]))
        moved = {key: value.clone() for key, value in network.state_dict().items()}
        network.load_state_dict(start)
        forward_views(network, batch, task.seen)
    assert any(not torch.equal(moved[key], start[key]) for key in moved)
    assert all(torch.equal(moved[key], value) for key, value in network.state_dict().items())


OTHERS: dict[str, tuple[dict[str, Any], bool]] = {
    "Base": ({"method": "base"}, False),
    "Base that distils": ({"method": "base", "base_distillation": True}, False),
    "E2E": ({"method": "e2e"}, True),
    "DR": ({"method": "dr"}, False),
    "GD": ({"method": "gd"}, True),
    "UB": ({"method": "offline"}, False),
}
"""Options of each method, and whether it weighs classes."""


def loss_and_batch(options: dict[str, Any], task: TaskInfo) -> tuple[float, Training, Batch]:
    training = training_of(method_of(**options), task=task)
    if training.before is not None:
        training.before(LabelCounts(COUNTS[: task.seen]))
    batch = batch_for(training, classes=range(task.seen))
    return loss_of(training, batch), training, batch


@pytest.mark.parametrize("task", [FIRST, TASK])
@pytest.mark.parametrize("labeled", ["together", "apart"])
@pytest.mark.parametrize("name", OTHERS)
def test_other_methods_learn_labels_by_both_views_and_all_else_as_before(
    name: str, labeled: str, task: TaskInfo
) -> None:
    options, weighs = OTHERS[name]
    given = {**options, "labeled_statistics": labeled}
    usual, _, _ = loss_and_batch(given, task)
    loss, training, batch = loss_and_batch({**given, "strong_labels": "labels"}, task)
    assert training.strong_labeled and not training.strong
    assert batch.strong_images is not None
    beside = [batch.unlabeled] if labeled == "together" else []
    weak = rows(training.network, batch.images, *beside, seen=task.seen)[:8]
    strong = rows(training.network, batch.strong_images, seen=task.seen)
    weights = slow_label_weights(COUNTS[: task.seen]) if weighs else [1.0] * task.seen
    of_weak, of_strong = (slow_supervised(batch, weights, logits) for logits in (weak, strong))
    count = 8 + len(batch.unlabeled) if name == "GD" and task.past else 8
    assert of_weak != pytest.approx(of_strong, rel=0.01)
    assert loss - usual == pytest.approx((of_strong - of_weak) / 2 / count, rel=1e-7)


def test_the_bound_with_unlabelled_images_learns_labels_by_both_views_beside_consistency() -> None:
    options = {"method": "offline-unlabeled", "consistency_threshold": 0.2}
    loss, training, batch = loss_and_batch({**options, "strong_labels": "labels"}, TASK)
    assert batch.strong is not None and batch.strong_images is not None
    weak = rows(training.network, batch.images, batch.unlabeled)
    both = rows(training.network, batch.strong, batch.strong_images)
    slow = (mean_supervised(batch, weak[:8]) + mean_supervised(batch, both[6:])) / 2
    assert some_of(weak[8:], 0.2)
    slow += slow_consistency(weak[8:], both[:6], 0.2)
    assert loss == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize("method", ["base", "e2e", "dr", "gd", "offline"])
def test_what_has_no_pseudo_labels_learns_the_same_whether_they_are_named_or_not(
    method: str,
) -> None:
    losses = [
        loss_and_batch({"method": method, "strong_labels": value}, TASK)[0]
        for value in ("labels", BOTH)
    ]
    assert losses[0] == losses[1]
    names = {
        value: run_name(RunConfig(method=method, strong_labels=value))
        for value in ("none", "labels", BOTH)
    }
    assert names["labels"] == names[BOTH] != names["none"]


def test_the_bound_that_omega_is_measured_by_learns_weak_views() -> None:
    for method in ("dm", "gd", "offline"):
        config = RunConfig(method=method, strong_labels="labels")
        assert bound_config(config) == bound_config(RunConfig())
