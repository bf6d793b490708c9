"""Losses, weights and scores, each against loops over images and classes in float64."""

from math import log
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import Rows, consistency, cross_entropy, divergence, ensemble, softmax
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
    threshold_at_tpr,
    weighted_cross_entropy_sum,
    with_pseudo_labels,
)

generated = settings(deadline=None, max_examples=60)


class Batch(NamedTuple):
    """Logits of the same images by three networks, over the classes of past tasks and a new one."""

    sizes: list[int]
    new: int
    teacher: Tensor
    student: Tensor
    strong: Tensor
    labels: Tensor
    mask: Tensor
    temperature: float

    @property
    def past(self) -> int:
        return sum(self.sizes)

    def divergence(self, start: int, end: int) -> float:
        """Return the mean divergence of the student from the teacher among some classes."""
        teacher, student = (z[:, start:end].tolist() for z in (self.teacher, self.student))
        t, count = self.temperature, len(teacher)
        pairs = zip(teacher, student, strict=True)
        return sum(divergence(softmax(a, t), softmax(b, t)) for a, b in pairs) / count


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    new, count, seed = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    classes = sum(sizes) + new
    teacher, student, strong = normal(3, count, classes, seed=seed)
    labels = torch.randint(classes, (count,), generator=generator)
    mask = torch.rand(count, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    temperature = draw(st.sampled_from([1.0, 2.0, 0.5, 7.0]))
    return Batch(sizes, new, teacher, student, strong, labels, mask, temperature)


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(shape, generator=generator, dtype=torch.float64)


def near(value: Tensor, expected: float) -> bool:
    return float(value.detach()) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def gradient(loss: Tensor, of: Tensor) -> Tensor | None:
    return torch.autograd.grad(loss, of, allow_unused=True, retain_graph=True)[0]


def taught(loss: Tensor, logits: Tensor, dim: int) -> list[int]:
    """Return the classes (of dimension 0) or images (of dimension 1) that get a gradient."""
    received = gradient(loss, logits)
    assert received is not None
    return received.ne(0).any(dim=dim).nonzero().flatten().tolist()


@generated
@given(batch=batches(), weighted=st.booleans())
def test_labels_and_accepted_pseudo_labels_are_one_weighted_sum(
    batch: Batch, weighted: bool
) -> None:
    """Eqs. 6 and 7, each by itself and both joined; a label outside the mask may be any number."""
    _, _, logits, others, _, labels, mask, _ = batch
    weights = torch.linspace(0.5, 2, logits.shape[1], dtype=torch.float64) if weighted else None
    guesses = labels.flip(0)

    def slow(rows: Rows, of: Tensor, counts: Tensor) -> float:
        weight = [1.0] * logits.shape[1] if weights is None else weights.tolist()
        triples = zip(rows, of.tolist(), counts.tolist(), strict=True)
        costs = (weight[label] * cross_entropy(row, label) for row, label, c in triples if c)
        return float(sum(costs))

    of_labels = weighted_cross_entropy_sum(logits, labels, weights)
    assert near(of_labels, slow(logits.tolist(), labels, torch.ones_like(mask)))
    anything_outside = torch.where(mask, guesses, -7)
    of_guesses = weighted_cross_entropy_sum(others, anything_outside, weights, mask)
    assert near(of_guesses, slow(others.tolist(), guesses, mask))
    both, count = with_pseudo_labels(labels, guesses, mask)
    joined = weighted_cross_entropy_sum(torch.cat([logits, others]), both, weights)
    assert near(joined, float(of_labels + of_guesses))
    assert int(count) == len(labels) + int(mask.sum())


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
    teacher = torch.tensor([[1.0, 2.0, 9.0], [3.0, 2.0, 9.0]])
    assert pseudo_labels(teacher, 2).tolist() == [1, 0]
    assert pseudo_labels(teacher, 3).tolist() == [2, 2]


@generated
@given(
    batch=batches(),
    threshold=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    among=st.sampled_from(["all", "new", "new and the first"]),
)
def test_consistency_loss_agrees_with_loops(batch: Batch, threshold: float, among: str) -> None:
    every = range(batch.student.shape[1])
    new = every[batch.past :] or every[-1:]
    classes = {"all": None, "new": new, "new and the first": sorted({0, *new})}[among]
    weak = batch.student.clone()
    weak[:, [c for c in every if c not in (classes or every)]] = -1000
    expected = consistency(weak.tolist(), batch.strong.tolist(), threshold)
    found = consistency_loss(batch.student, batch.strong, threshold, classes)
    assert near(found, expected)


@generated
@given(batch=batches())
def test_distillation_agrees_with_loops(batch: Batch) -> None:
    sizes, past, seen, t = batch.sizes, batch.past, batch.past + batch.new, batch.temperature
    starts = [sum(sizes[:task]) for task in range(len(sizes))]
    pairs = zip(sizes, starts, strict=True)
    expected = sum(size / seen * batch.divergence(start, start + size) for size, start in pairs)
    teacher, student = batch.teacher, batch.student
    assert near(per_task_distillation(teacher, student, sizes, t), expected)
    of_past = past_distillation(teacher, student, past, t)
    assert near(of_past, t**2 * batch.divergence(0, past))
    of_new = new_task_distillation(teacher, student, past, seen, t)
    assert near(of_new, t**2 * batch.divergence(past, seen))


def test_per_task_distillation_is_nothing_in_the_first_task_and_for_one_class_a_task() -> None:
    teacher, student = normal(4, 3, seed=1), normal(4, 3, seed=2)
    assert per_task_distillation(teacher, student, [], 2.0) == 0
    assert per_task_distillation(teacher, student, [1, 1, 1], 2.0) == 0


def test_padding_is_harmless_in_single_precision() -> None:
    teacher, student = normal(4, 7, seed=1).float(), normal(4, 7, seed=2).float().requires_grad_()
    loss = per_task_distillation(teacher, student, [1, 4, 2], 0.5)
    received = gradient(loss, student)
    assert received is not None and torch.isfinite(received).all()
    exact = per_task_distillation(teacher.double(), student.double(), [1, 4, 2], 0.5)
    assert float(loss.detach()) == pytest.approx(float(exact.detach()), rel=1e-5)


@generated
@given(batch=batches())
def test_the_ensemble_and_its_distillation_agree_with_loops(batch: Batch) -> None:
    of_past, of_new = batch.teacher[:, : batch.past], batch.strong[:, batch.past :]
    target = ensemble_target(of_past.softmax(dim=1), of_new.softmax(dim=1))
    expected = [ensemble(*rows) for rows in zip(of_past.tolist(), of_new.tolist(), strict=True)]
    torch.testing.assert_close(target, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(target.sum(dim=1), torch.ones(len(target), dtype=torch.float64))
    pairs = zip(expected, batch.student.tolist(), strict=True)
    total = sum(divergence(q, softmax(row)) for q, row in pairs)
    assert near(soft_global_distillation(batch.student, target), total)


def test_losses_teach_the_student_about_the_right_images_and_classes_only() -> None:
    teacher, new, student = (normal(3, 6, seed=seed).requires_grad_() for seed in (1, 2, 3))
    for loss, classes in (
        (per_task_distillation(teacher, student, [2, 2], 2.0), [0, 1, 2, 3]),
        (per_task_distillation(teacher, student, [3, 1], 2.0), [0, 1, 2]),  # of one class, nothing
        (past_distillation(teacher, student, 2, 2.0), [0, 1]),
        (new_task_distillation(teacher, student, 2, 5, 2.0), [2, 3, 4]),
    ):
        assert gradient(loss, teacher) is None
        assert taught(loss, student, 0) == classes
    target = ensemble_target(teacher[:, :4].softmax(dim=1), new[:, 4:].softmax(dim=1))
    loss = soft_global_distillation(student, target)
    assert gradient(loss, teacher) is None and gradient(loss, new) is None
    assert taught(loss, student, 0) == list(range(6))
    for mask in (torch.tensor([True, False, True]), torch.zeros(3, dtype=torch.bool)):
        loss = weighted_cross_entropy_sum(student, torch.tensor([0, 1, 2]), None, mask)
        assert taught(loss, student, 1) == mask.nonzero().flatten().tolist()
    weak = torch.tensor([[9.0, 0.0], [0.1, 0.0], [0.0, 9.0]], requires_grad=True)
    loss = consistency_loss(weak, student[:, :2], 0.9)
    assert gradient(loss, weak) is None
    assert taught(loss, student, 1) == [0, 2]


@generated
@given(batch=batches())
def test_confidence_calibration_agrees_with_loops(batch: Batch) -> None:
    logits, mask = batch.student, batch.mask
    classes = logits.shape[1]
    rows = [-sum(map(log, softmax(row))) / classes - log(classes) for row in logits.tolist()]
    chosen = [row for row, counts in zip(rows, mask, strict=True) if counts]
    assert near(confidence_calibration(logits), sum(rows) / len(rows))
    assert near(confidence_calibration(logits, mask), sum(chosen) / max(1, len(chosen)))
    assert near(confidence_calibration(torch.zeros_like(logits)), 0)


@generated
@given(batch=batches())
def test_scores_look_at_seen_classes_only(batch: Batch) -> None:
    seen, rows = batch.past, batch.student[:, : batch.past].tolist()
    assert max_similarity(batch.student, seen).tolist() == [max(row) for row in rows]
    confidence = softmax_confidence(batch.student, seen)
    assert confidence.tolist() == pytest.approx([max(softmax(row)) for row in rows])


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
def test_the_threshold_is_the_highest_that_gives_the_rate(scores: list[float], rate: float) -> None:
    threshold = float(threshold_at_tpr(torch.tensor(scores, dtype=torch.float64), rate))

    def reached(candidate: float) -> float:
        return sum(score >= candidate for score in scores) / len(scores)

    assert threshold == max(c for c in scores if reached(c) >= rate - 1e-12)


def test_a_threshold_needs_images_and_a_rate() -> None:
    with pytest.raises(ConfigError, match="no held-out images"):
        threshold_at_tpr(torch.empty(0), 0.5)
    with pytest.raises(ConfigError, match="more than 0 and at most 1, not 0"):
        threshold_at_tpr(torch.ones(3), 0)
