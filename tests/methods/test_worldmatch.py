"""WorldMatch's step against a plain computation, and labels that are learned by strong views."""

import math
from dataclasses import replace
from typing import Any

import plain
import pytest
import torch
from plain import Row, Rows
from test_paper_step import (
    LABELS,
    SIZES,
    TASK,
    WEIGHTS,
    batch_of,
    build,
    images,
    loss_of,
    method_in_third_task,
    rows,
    supervised,
    training_of,
)

from distillmatch.config import RunConfig
from distillmatch.methods import make_method


def worldmatch(**options: Any) -> Any:
    given = {"consistency_threshold": 0.185, **options}
    method: Any = method_in_third_task("paper", method="worldmatch", options=given)
    method.weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    return method


def pseudo(logits: Rows, guesses: list[int], accepted: list[bool]) -> float:
    return sum(
        WEIGHTS[guess] * plain.cross_entropy(row, guess)
        for row, guess, counts in zip(logits, guesses, accepted, strict=True)
        if counts
    )


SHARES: Row = [0.1, 0.2, 0.05, 0.15, 0.1, 0.3, 0.1]


@pytest.mark.parametrize(
    ("accept", "adjustment", "expected"),
    [
        ("everything", 0.0, [True] * 6),
        ("everything", 1.5, [True] * 6),
        ("truth", 0.0, [True, True, False, False, False, False]),
        ("truth-new", 0.0, [True, True, False, False, True, True]),
    ],
)
def test_a_step_of_worldmatch(accept: str, adjustment: float, expected: list[bool]) -> None:
    method = worldmatch(accept=accept, logit_adjustment=adjustment)
    method.log_shares = torch.tensor(SHARES, dtype=torch.float64).log()
    assert method.needs_truth == (accept != "everything")
    training = training_of(method, "classifier")
    assert training.strong and training.strong_labeled
    batch = replace(
        batch_of(training, LABELS),
        strong_images=images(5, 4),
        truth=torch.tensor([0, 4, 5, 6, 7, 8]) if method.needs_truth else None,
    )
    assert batch.strong is not None and batch.strong_images is not None
    both = torch.cat([batch.images, batch.unlabeled])
    weak = rows(method.classifier, both)
    strong = rows(method.classifier, torch.cat([batch.strong, batch.strong_images]))
    past = rows(method.networks["past"], both, False)
    guesses = [row.index(max(row[:5])) for row in past[5:]]

    def moved(logits: Rows) -> Rows:
        shift = [adjustment * math.log(share) for share in SHARES]
        return [[z + s for z, s in zip(row, shift, strict=True)] for row in logits]

    of_weak = 5 * supervised(moved(weak[:5]), LABELS, WEIGHTS)
    of_weak += pseudo(moved(weak[5:]), guesses, expected)
    of_strong = 5 * supervised(moved(strong[6:]), LABELS, WEIGHTS)
    of_strong += pseudo(moved(strong[:6]), guesses, expected)
    slow = (of_weak + of_strong) / 2 / (5 + sum(expected))
    slow += plain.consistency(weak[5:], strong[:6], 0.185)
    slow += plain.per_task(past, weak, SIZES)
    assert loss_of(training, batch) == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize("accept", ["newness", "two-teachers"])
def test_what_the_new_classes_network_is_sure_of_is_no_past_class(accept: str) -> None:
    """It is passed over, or with two teachers it is taken for the new class."""
    method = worldmatch(accept=accept)
    newness, training = method.trainings(TASK)[:2]
    assert newness.name == "newness" and newness.labeled == "first-half"
    network = method.networks["newness"].eval()
    given = images(6, 2)
    new = [plain.softmax(row[5:]) for row in rows(network, given, False)]
    past = [row[:5] for row in rows(method.networks["past"], given, False)]
    certain = [max(row) for row in new]
    threshold = sorted(certain)[3]
    method.values["threshold"] = -threshold
    outputs = method.unlabeled_outputs(given, TASK)
    assert outputs.score is not None
    pseudo_labels = method.pseudo_labels(outputs, TASK, None)
    familiar = [one <= threshold + 1e-12 for one in certain]
    labels = [row.index(max(row)) for row in past]
    if accept == "two-teachers":
        pairs = enumerate(zip(new, familiar, strict=True))
        labels = [labels[n] if known else 5 + row.index(max(row)) for n, (row, known) in pairs]
        familiar = [True] * 6
    assert pseudo_labels.labels.tolist() == labels
    assert pseudo_labels.accepted.tolist() == familiar
    assert training.name == "classifier"


@pytest.mark.parametrize("method", ["base", "e2e", "dr", "gd", "dm", "offline"])
def test_labels_can_be_learned_by_strong_views_as_much_as_by_weak_ones(method: str) -> None:
    first = make_method(RunConfig(method=method, strong_labels=True), build)
    task = replace(TASK, number=0, sizes=(7,))
    (training,) = [one for one in first.trainings(task) if one.name == "classifier"]
    assert training.strong_labeled
    if method == "dm":
        first.weights = torch.ones(7, dtype=torch.float64)  # type: ignore[attr-defined]
    batch = replace(batch_of(training, LABELS, task), strong_images=images(5, 4))
    batch = replace(batch, unlabeled=batch.unlabeled[:0])
    assert batch.strong_images is not None
    weak, strong = (rows(training.network, views) for views in (batch.images, batch.strong_images))
    slow = (supervised(weak, LABELS) + supervised(strong, LABELS)) / 2
    assert loss_of(training, batch, task) == pytest.approx(slow, rel=1e-9)
