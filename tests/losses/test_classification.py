"""Cross entropy, class weights and consistency, against loops over images."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_draws import batches, generated, gradient, near, normal, seeds, some
from plain import consistency, cross_entropy

from distillmatch.losses import (
    class_weights,
    consistency_loss,
    pseudo_labels,
    weighted_cross_entropy_sum,
    with_pseudo_labels,
)


@generated
@given(
    batch=batches, unlabeled=batches, classes=st.integers(1, 5), weighted=st.booleans(), seed=seeds
)
def test_labels_and_accepted_pseudo_labels_are_one_weighted_sum(
    batch: int, unlabeled: int, classes: int, weighted: bool, seed: int
) -> None:
    """Eqs. 6 and 7, each by itself and both joined; a label outside the mask may be any number."""
    logits = normal(batch + unlabeled, classes, seed=seed)
    labels = torch.arange(batch + unlabeled) % classes
    weights = normal(classes, seed=seed + 1).abs() if weighted else None
    mask = some(unlabeled, seed)

    def slow(rows: range) -> float:
        return sum(
            (1.0 if weights is None else float(weights[labels[b]]))
            * cross_entropy(logits[b].tolist(), int(labels[b]))
            for b in rows
            if b < batch or mask[b - batch]
        )

    of_labels = weighted_cross_entropy_sum(logits[:batch], labels[:batch], weights)
    assert near(of_labels, slow(range(batch)))
    anything_outside = torch.where(mask, labels[batch:], -7)
    of_pseudo = weighted_cross_entropy_sum(logits[batch:], anything_outside, weights, mask)
    assert near(of_pseudo, slow(range(batch, batch + unlabeled)))
    both, count = with_pseudo_labels(labels[:batch], labels[batch:], mask)
    assert near(weighted_cross_entropy_sum(logits, both, weights), float(of_labels + of_pseudo))
    assert int(count) == batch + int(mask.sum())


def test_images_outside_the_mask_teach_nothing() -> None:
    logits = normal(3, 4, seed=1).requires_grad_()
    for mask in (torch.tensor([True, False, True]), torch.zeros(3, dtype=torch.bool)):
        loss = weighted_cross_entropy_sum(logits, torch.tensor([0, 1, 2]), None, mask)
        received = gradient(loss, logits)
        assert received is not None
        assert torch.equal(received.ne(0).any(dim=1), mask)


@generated
@given(
    counts=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=8),
    smoothing=st.sampled_from([1.0, 0.5]),
    cap=st.sampled_from([10.0, 2.0]),
)
def test_class_weights_agree_with_loops(
    counts: list[tuple[int, int]], smoothing: float, cap: float
) -> None:
    labels, pseudo = (torch.tensor(column) for column in zip(*counts, strict=True))
    for with_pseudo in (True, False):
        smoothed = [a + (b if with_pseudo else 0) + smoothing for a, b in counts]
        expected = [min(cap, sum(smoothed) / len(smoothed) / count) for count in smoothed]
        found = class_weights(labels, pseudo if with_pseudo else None, smoothing, cap)
        assert found.dtype == torch.float32 and found.tolist() == pytest.approx(expected)
        precise = class_weights(labels.double(), pseudo if with_pseudo else None, smoothing, cap)
        assert precise.tolist() == pytest.approx(expected, rel=1e-12)


def test_pseudo_labels_are_past_classes_of_the_teacher() -> None:
    teacher = torch.tensor([[1.0, 2.0, 9.0], [3.0, 2.0, 9.0]], requires_grad=True)
    assert pseudo_labels(teacher, 2).tolist() == [1, 0]
    assert pseudo_labels(teacher, 3).tolist() == [2, 2]


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
    expected = consistency(weak.tolist(), strong.tolist(), threshold)
    assert near(consistency_loss(weak, strong, threshold), expected)


def test_consistency_teaches_through_confident_strong_views_only() -> None:
    weak = torch.tensor([[9.0, 0.0], [0.1, 0.0]], requires_grad=True)
    strong = normal(2, 2, seed=1).requires_grad_()
    loss = consistency_loss(weak, strong, 0.9)
    assert gradient(loss, weak) is None
    received = gradient(loss, strong)
    assert received is not None
    assert received.ne(0).any(dim=1).tolist() == [True, False]
