"""Cross entropy, class weights, consistency and DM's total, against loops over images."""

from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_draws import batches, generated, gradient, near, normal, seeds, some, temperatures
from slow import softmax

from distillmatch.losses import (
    accepted,
    class_weights,
    consistency_loss,
    distillmatch_loss,
    hard_distillation,
    pseudo_labels,
    weighted_cross_entropy_sum,
    with_pseudo_labels,
)


@generated
@given(batch=batches, classes=st.integers(1, 5), weighted=st.booleans(), seed=seeds)
def test_weighted_cross_entropy_agrees_with_loops(
    batch: int, classes: int, weighted: bool, seed: int
) -> None:
    logits = normal(batch, classes, seed=seed)
    labels = torch.randint(classes, (batch,), generator=torch.Generator().manual_seed(seed))
    weights = normal(classes, seed=seed + 1).abs() if weighted else None
    mask = some(batch, seed)
    expected, count = 0.0, 0
    for b in range(batch):
        if mask[b]:
            weight = 1.0 if weights is None else float(weights[labels[b]])
            expected -= weight * log(softmax(logits[b].tolist())[int(labels[b])])
            count += 1
    anything_outside = torch.where(mask, labels, -7)
    found = weighted_cross_entropy_sum(logits, anything_outside, weights, mask)
    assert near(found, expected)
    found = hard_distillation(logits, anything_outside, mask, weights)
    assert near(found, expected / max(1, count))
    everything = torch.ones(batch, dtype=torch.bool)
    assert torch.equal(
        weighted_cross_entropy_sum(logits, labels, weights),
        weighted_cross_entropy_sum(logits, labels, weights, everything),
    )


def test_images_outside_the_mask_teach_nothing() -> None:
    logits = normal(3, 4, seed=1).requires_grad_()
    mask = torch.tensor([True, False, True])
    loss = weighted_cross_entropy_sum(logits, torch.tensor([0, 1, 2]), None, mask)
    received = gradient(loss, logits)
    assert received is not None
    assert received.ne(0).any(dim=1).tolist() == [True, False, True]
    nothing = hard_distillation(logits, torch.tensor([0, 1, 2]), torch.zeros(3, dtype=torch.bool))
    assert nothing == 0
    received = gradient(nothing, logits)
    assert received is not None
    assert received.eq(0).all()


@generated
@given(
    counts=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=8),
    smoothing=st.sampled_from([1.0, 0.5]),
    cap=st.sampled_from([10.0, 2.0]),
)
def test_class_weights_agree_with_loops(
    counts: list[tuple[int, int]], smoothing: float, cap: float
) -> None:
    labels = torch.tensor([of_labels for of_labels, _ in counts], dtype=torch.float64)
    pseudo = torch.tensor([of_pseudo for _, of_pseudo in counts], dtype=torch.float64)
    for with_pseudo in (True, False):
        smoothed = [a + (b if with_pseudo else 0) + smoothing for a, b in counts]
        expected = [min(cap, sum(smoothed) / len(smoothed) / count) for count in smoothed]
        found = class_weights(labels, pseudo if with_pseudo else None, smoothing, cap)
        assert found.tolist() == pytest.approx(expected, rel=1e-12)


def test_class_weights_of_counted_integers() -> None:
    found = class_weights(torch.tensor([99, 0]), torch.tensor([0, 24]))
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx([62.5 / 100, 62.5 / 25])


def test_a_class_without_pseudo_labels_gets_the_capped_weight() -> None:
    weights = class_weights(torch.tensor([100, 100, 0]), torch.tensor([0, 0, 0]))
    assert weights[2] == 10
    assert class_weights(torch.tensor([5, 5, 5])).tolist() == [1, 1, 1]


def test_pseudo_labels_are_past_classes_of_the_teacher() -> None:
    teacher = torch.tensor([[1.0, 2.0, 9.0], [3.0, 2.0, 9.0]], requires_grad=True)
    assert pseudo_labels(teacher, 2).tolist() == [1, 0]
    assert pseudo_labels(teacher, 3).tolist() == [2, 2]


def test_a_score_at_the_threshold_is_accepted() -> None:
    scores = torch.tensor([0.1, 0.2, 0.3])
    assert accepted(scores, torch.tensor(0.2)).tolist() == [False, True, True]
    assert accepted(scores, 0.5).tolist() == [False, False, False]


@generated
@given(
    batch=batches,
    classes=st.integers(1, 5),
    threshold=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    seed=seeds,
)
def test_consistency_loss_agrees_with_loops(
    batch: int, classes: int, threshold: float, seed: int
) -> None:
    weak, strong = normal(batch, classes, seed=seed), normal(batch, classes, seed=seed + 1)
    expected = 0.0
    for b in range(batch):
        q = softmax(weak[b].tolist())
        if max(q) >= threshold:
            expected -= log(softmax(strong[b].tolist())[q.index(max(q))]) / batch
    assert near(consistency_loss(weak, strong, threshold), expected)


def test_consistency_teaches_through_confident_strong_views_only() -> None:
    weak = torch.tensor([[9.0, 0.0], [0.1, 0.0]], requires_grad=True)
    strong = normal(2, 2, seed=1).requires_grad_()
    loss = consistency_loss(weak, strong, 0.9)
    assert gradient(loss, weak) is None
    received = gradient(loss, strong)
    assert received is not None
    assert received.ne(0).any(dim=1).tolist() == [True, False]


@generated
@given(batch=batches, unlabeled=batches, classes=st.integers(1, 4), weight=temperatures, seed=seeds)
def test_the_total_agrees_with_loops(
    batch: int, unlabeled: int, classes: int, weight: float, seed: int
) -> None:
    labeled, guessed = normal(batch, classes, seed=seed), normal(unlabeled, classes, seed=seed + 1)
    labels = torch.arange(batch) % classes
    guesses = torch.arange(unlabeled) % classes
    mask = some(unlabeled, seed)
    weights = class_weights(torch.bincount(labels, minlength=classes).double())
    terms = [
        -float(weights[k]) * log(softmax(row.tolist())[int(k)])
        for row, k, counts in (
            *zip(labeled, labels, [True] * batch, strict=True),
            *zip(guessed, guesses, mask, strict=True),
        )
        if counts
    ]
    expected = sum(terms) / len(terms) + weight * 0.25 + 3 * 0.5
    both, count = with_pseudo_labels(labels, guesses, mask)
    found = distillmatch_loss(
        weighted_cross_entropy_sum(torch.cat([labeled, guessed]), both, weights),
        count,
        consistency=torch.tensor(0.25),
        distillation=torch.tensor(0.5),
        consistency_weight=weight,
        distillation_weight=3.0,
    )
    assert near(found, expected)
