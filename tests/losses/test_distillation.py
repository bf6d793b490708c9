"""Distillation, of tasks, classes and ensembles, against loops over images and classes."""

from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_draws import batches, generated, gradient, near, normal, seeds, some, temperatures
from plain import divergence, ensemble, softmax
from torch import Tensor

from distillmatch.losses import (
    confidence_calibration,
    ensemble_target,
    new_task_distillation,
    past_distillation,
    per_task_distillation,
    soft_global_distillation,
)


def slow(teacher: Tensor, student: Tensor, classes: slice, temperature: float) -> float:
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
        expected += size / slots * slow(teacher, student, task, temperature)
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
    assert near(of_past, squared * slow(teacher, student, slice(0, past), temperature))
    assert near(of_new, squared * slow(teacher, student, slice(past, seen), temperature))


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


def test_of_equally_likely_past_classes_one_keeps_its_probability() -> None:
    target = ensemble_target(torch.full((1, 4), 0.25), torch.full((1, 2), 0.5))
    assert float(target.sum()) == pytest.approx(1)
    assert target.eq(0.25).sum() == 1


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
