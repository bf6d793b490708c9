"""ER and PseudoER: a step of each against a plain computation, and what their batches hold."""

from dataclasses import replace
from typing import Any

import plain
import pytest
import torch
from test_paper_step import (
    LABELS,
    PAST,
    SEEN,
    STORED,
    TASK,
    batch_of,
    loss_of,
    method_in_third_task,
    rows,
    supervised,
    training_of,
)


def test_a_step_of_er_is_the_cross_entropy_of_new_and_stored_images() -> None:
    method = method_in_third_task("paper", method="er", coreset=9)
    training = training_of(method, "classifier")
    assert not training.unlabeled and training.stored_share == 0.5
    batch = batch_of(training, STORED)
    slow = supervised(rows(method.classifier, batch.images), STORED)
    assert loss_of(training, batch) == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize(
    ("weight", "threshold", "returning"), [(1.0, 0.52, ()), (0.3, 0.52, ()), (1.0, 0.32, (0, 3))]
)
def test_a_step_of_pseudo_er_teaches_strong_views_the_tasks_classes_alone(
    weight: float, threshold: float, returning: tuple[int, ...]
) -> None:
    own = [*returning, *range(PAST, SEEN)]
    given: Any = {"consistency_threshold": threshold, "pseudo_label_weight": weight}
    method = method_in_third_task("paper", method="pseudo-er", options=given)
    training = training_of(method, "classifier")
    batch = batch_of(training, LABELS)
    assert batch.strong is not None
    weak = rows(method.classifier, torch.cat([batch.images, batch.unlabeled]))
    strong = rows(method.classifier, batch.strong)
    slow, taught = supervised(weak[:5], LABELS), 0
    for of_weak, of_strong in zip(weak[5:], strong, strict=True):
        among_own = plain.softmax([of_weak[c] for c in own])
        if max(among_own) >= threshold:
            label = own[among_own.index(max(among_own))]
            slow += weight * plain.cross_entropy(of_strong, label) / 6
            taught += 1
    assert 0 < taught < 6
    task = replace(TASK, returning=returning)
    assert loss_of(training, batch, task) == pytest.approx(slow, rel=1e-9)
    alone = replace(batch, unlabeled=batch.unlabeled[:0], strong=batch.strong[:0])
    slow = supervised(rows(method.classifier, batch.images), LABELS)
    assert loss_of(training, alone) == pytest.approx(slow, rel=1e-9)
