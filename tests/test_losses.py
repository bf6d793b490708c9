"""Losses, weights and scores, each against loops over images and classes in float64."""

from collections.abc import Callable
from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import consistency, cross_entropy, divergence, ensemble, softmax
from torch import Tensor

from distillmatch.errors import ConfigError
from distillmatch.losses import (
    choose_epsilon,
    class_weights,
    confidence_calibration,
    consistency_loss,
    ensemble_target,
    max_similarity,
    new_task_distillation,
    past_distillation,
    per_task_distillation,
    perturb,
    pseudo_labels,
    soft_global_distillation,
    softmax_confidence,
    threshold_at_fpr,
    threshold_at_tpr,
    weighted_cross_entropy_sum,
    with_pseudo_labels,
)

generated = settings(deadline=None, max_examples=60)
seeds = st.integers(0, 2**31)
batches = st.integers(1, 6)
temperatures = st.sampled_from([1.0, 2.0, 0.5, 7.0])


def normal(*shape: int, seed: int, spread: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(shape, generator=generator, dtype=torch.float64)


def some(count: int, seed: int) -> Tensor:
    """A mask in which none, some or all are chosen, each often enough."""
    generator = torch.Generator().manual_seed(seed)
    chance = (0.0, 0.5, 1.0)[seed % 3]
    return torch.rand(count, generator=generator) < chance


def near(value: Tensor, expected: float) -> bool:
    return float(value.detach()) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def gradient(loss: Tensor, of: Tensor) -> Tensor | None:
    return torch.autograd.grad(loss, of, allow_unused=True, retain_graph=True)[0]


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
    cap=st.sampled_from([10.0, 2.0]),
)
def test_class_weights_agree_with_loops(counts: list[tuple[int, int]], cap: float) -> None:
    labels, pseudo = (torch.tensor(column) for column in zip(*counts, strict=True))
    for with_pseudo in (True, False):
        smoothed = [a + (b if with_pseudo else 0) + 1 for a, b in counts]
        expected = [min(cap, sum(smoothed) / len(smoothed) / count) for count in smoothed]
        found = class_weights(labels, pseudo if with_pseudo else None, cap)
        assert found.dtype == torch.float32 and found.tolist() == pytest.approx(expected)
        precise = class_weights(labels.double(), pseudo if with_pseudo else None, cap)
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
    past, returning = classes // 2, range(seed % max(1, classes // 2))
    own = [c for c in range(classes) if c >= past or c in returning]
    weak[:, [c for c in range(classes) if c not in own]] = -1e9  # as if they were not there
    expected = consistency(weak.tolist(), strong.tolist(), threshold)
    given = normal(batch, classes, seed=seed)
    assert near(consistency_loss(given, strong, threshold, past, returning), expected)


def test_consistency_teaches_through_confident_strong_views_only() -> None:
    weak = torch.tensor([[9.0, 0.0], [0.1, 0.0]], requires_grad=True)
    strong = normal(2, 2, seed=1).requires_grad_()
    loss = consistency_loss(weak, strong, 0.9)
    assert gradient(loss, weak) is None
    received = gradient(loss, strong)
    assert received is not None
    assert received.ne(0).any(dim=1).tolist() == [True, False]


def of_classes(teacher: Tensor, student: Tensor, classes: slice, temperature: float) -> float:
    """The mean over images of the divergence among some classes."""
    pairs = zip(teacher[:, classes].tolist(), student[:, classes].tolist(), strict=True)
    found = [divergence(softmax(t, temperature), softmax(s, temperature)) for t, s in pairs]
    return sum(found) / len(found)


@generated
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    new=st.integers(0, 3),
    batch=batches,
    temperature=temperatures,
    seed=seeds,
)
def test_per_task_distillation_agrees_with_loops(
    sizes: list[int], new: int, batch: int, temperature: float, seed: int
) -> None:
    slots = sum(sizes) + new
    teacher, student = normal(batch, slots, seed=seed), normal(batch, slots, seed=seed + 1)
    expected, first = 0.0, 0
    for size in sizes:
        task = slice(first, first + size)
        expected += size / slots * of_classes(teacher, student, task, temperature)
        first += size
    assert near(per_task_distillation(teacher, student, sizes, temperature), expected)


@generated
@given(
    past=st.integers(1, 5),
    new=st.integers(1, 5),
    batch=batches,
    temperature=temperatures,
    seed=seeds,
)
def test_distillation_of_all_past_and_of_the_new_classes_agrees_with_loops(
    past: int, new: int, batch: int, temperature: float, seed: int
) -> None:
    seen = past + new
    teacher, student = normal(batch, seen + 2, seed=seed), normal(batch, seen + 2, seed=seed + 1)
    of_past = past_distillation(teacher, student, past, temperature)
    of_new = new_task_distillation(teacher, student, past, seen, temperature)
    squared = temperature**2
    assert near(of_past, squared * of_classes(teacher, student, slice(0, past), temperature))
    assert near(of_new, squared * of_classes(teacher, student, slice(past, seen), temperature))


def test_distillation_teaches_the_student_about_its_classes_only() -> None:
    teacher, student = (normal(3, 6, seed=seed).requires_grad_() for seed in (1, 2))
    for loss, classes in (
        (per_task_distillation(teacher, student, [2, 2], 2.0), [0, 1, 2, 3]),
        (per_task_distillation(teacher, student, [3, 1], 2.0), [0, 1, 2]),  # of one class, nothing
        (past_distillation(teacher, student, 2, 2.0), [0, 1]),
        (new_task_distillation(teacher, student, 2, 5, 2.0), [2, 3, 4]),
    ):
        assert gradient(loss, teacher) is None
        received = gradient(loss, student)
        assert received is not None
        assert received.ne(0).any(dim=0).nonzero().flatten().tolist() == classes
        assert received.sum(dim=1).abs().max() < 1e-12


def test_per_task_distillation_is_nothing_in_the_first_task_and_for_one_class_a_task() -> None:
    teacher, student = normal(4, 3, seed=1), normal(4, 3, seed=2)
    assert per_task_distillation(teacher, student, [], 2.0) == 0
    assert per_task_distillation(teacher, student, [1, 1, 1], 2.0) == 0


def test_padding_is_harmless_in_single_precision() -> None:
    teacher, student = normal(4, 7, seed=1).float(), normal(4, 7, seed=2).float().requires_grad_()
    loss = per_task_distillation(teacher, student, [1, 4, 2], 0.5)
    received = gradient(loss, student)
    assert received is not None
    assert torch.isfinite(received).all()
    exact = per_task_distillation(teacher.double(), student.double(), [1, 4, 2], 0.5)
    assert float(loss.detach()) == pytest.approx(float(exact.detach()), rel=1e-5)


@generated
@given(past=st.integers(1, 6), new=st.integers(1, 6), batch=batches, seed=seeds)
def test_the_ensemble_and_its_distillation_agree_with_loops(
    past: int, new: int, batch: int, seed: int
) -> None:
    of_past, of_new = normal(batch, past, seed=seed), normal(batch, new, seed=seed + 1)
    target = ensemble_target(of_past.softmax(dim=1), of_new.softmax(dim=1))
    logits, total = normal(batch, past + new, seed=seed + 2), 0.0
    for b in range(batch):
        expected = ensemble(of_past[b].tolist(), of_new[b].tolist())
        assert target[b].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-15)
        assert float(target[b].sum()) == pytest.approx(1, abs=1e-12)
        total += divergence(expected, softmax(logits[b].tolist()))
    assert near(soft_global_distillation(logits, target), total)


def test_the_two_teachers_of_the_ensemble_learn_nothing() -> None:
    past, new, student = (normal(3, n, seed=n).requires_grad_() for n in (3, 2, 5))
    target = ensemble_target(past.softmax(dim=1), new.softmax(dim=1))
    loss = soft_global_distillation(student, target)
    assert gradient(loss, past) is None and gradient(loss, new) is None
    received = gradient(loss, student)
    assert received is not None
    torch.testing.assert_close(received, student.detach().softmax(dim=1) - target)


@generated
@given(batch=batches, classes=st.integers(1, 6), seed=seeds)
def test_confidence_calibration_agrees_with_loops(batch: int, classes: int, seed: int) -> None:
    logits, mask = normal(batch, classes, seed=seed), some(batch, seed)
    rows = [
        -sum(log(p) for p in softmax(logits[b].tolist())) / classes - log(classes)
        for b in range(batch)
    ]
    chosen = [row for row, counts in zip(rows, mask, strict=True) if counts]
    assert near(confidence_calibration(logits), sum(rows) / batch)
    assert near(confidence_calibration(logits, mask), sum(chosen) / max(1, len(chosen)))
    assert near(confidence_calibration(torch.zeros_like(logits)), 0)


@generated
@given(batch=st.integers(1, 5), seen=st.integers(1, 4), unseen=st.integers(0, 3), seed=seeds)
def test_scores_look_at_seen_classes_only(batch: int, seen: int, unseen: int, seed: int) -> None:
    values = normal(batch, seen + unseen, seed=seed)
    similarity, confidence = max_similarity(values, seen), softmax_confidence(values, seen)
    for b in range(batch):
        row = values[b, :seen].tolist()
        assert float(similarity[b]) == max(row)
        assert near(confidence[b], max(softmax(row)))


def test_the_perturbation_moves_every_pixel_by_epsilon_along_the_gradient() -> None:
    moved = perturb(torch.zeros(4), torch.tensor([0.3, -7.0, 0.0, 1e-9]), 0.02)
    assert moved.tolist() == pytest.approx([0.02, -0.02, 0.0, 0.02])


def test_epsilon_is_the_one_of_the_highest_score_or_half_that_of_the_lowest() -> None:
    grid, scores = [0.0, 0.01, 0.02, 0.04], [0.5, 0.7, 0.3, 0.7]
    assert choose_epsilon(grid, scores) == 0.01
    assert choose_epsilon(grid, scores, "lowest-halved") == 0.01
    assert choose_epsilon(grid, [0.1, 0.2, 0.3, 0.05], "lowest-halved") == 0.02


@generated
@given(
    scores=st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 0.5]), min_size=1, max_size=40),
    rate=st.sampled_from([0.05, 0.07, 0.29, 0.3, 0.5, 0.95, 1.0]),
)
@pytest.mark.parametrize("threshold_at", [threshold_at_tpr, threshold_at_fpr])
def test_the_threshold_is_the_highest_that_gives_the_rate(
    threshold_at: Callable[[Tensor, float], Tensor], scores: list[float], rate: float
) -> None:
    threshold = float(threshold_at(torch.tensor(scores, dtype=torch.float64), rate))

    def reached(candidate: float) -> float:
        return sum(score >= candidate for score in scores) / len(scores)

    assert threshold == max(c for c in scores if reached(c) >= rate - 1e-12)


def test_a_threshold_needs_images_and_a_rate() -> None:
    with pytest.raises(ConfigError, match="no held-out images"):
        threshold_at_tpr(torch.empty(0), 0.5)
    with pytest.raises(ConfigError, match="more than 0 and at most 1, not 0"):
        threshold_at_tpr(torch.ones(3), 0)
