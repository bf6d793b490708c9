"""Distillation, of tasks, classes and ensembles, against loops over images and classes."""

from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_draws import batches, generated, gradient, near, normal, seeds, some, temperatures
from slow import divergence, softmax

from distillmatch.losses import (
    confidence_calibration,
    ensemble_target,
    ensemble_target_from_logits,
    new_task_distillation,
    past_distillation,
    per_task_distillation,
    soft_global_distillation,
)

past_sizes = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@generated
@given(
    sizes=past_sizes,
    new=st.integers(0, 3),
    batch=batches,
    temperature=temperatures,
    masked=st.booleans(),
    seed=seeds,
)
def test_per_task_distillation_agrees_with_loops(
    sizes: list[int],
    new: int,
    batch: int,
    temperature: float,
    masked: bool,
    seed: int,
) -> None:
    slots = sum(sizes) + new
    teacher, student = normal(batch, slots, seed=seed), normal(batch, slots, seed=seed + 1)
    mask = some(batch, seed) if masked else torch.ones(batch, dtype=torch.bool)
    rows = [b for b in range(batch) if mask[b]]
    expected, first = 0.0, 0
    for size in sizes:
        task = slice(first, first + size)
        first += size
        of_task = sum(
            divergence(
                softmax(teacher[b, task].tolist(), temperature),
                softmax(student[b, task].tolist(), temperature),
            )
            for b in rows
        )
        expected += size / slots * of_task / max(1, len(rows))
    found = per_task_distillation(teacher, student, sizes, temperature, mask if masked else None)
    assert near(found, expected)


@pytest.mark.parametrize("sizes", [[2, 2], [3, 1]])
def test_per_task_distillation_teaches_the_student_about_past_classes_only(
    sizes: list[int],
) -> None:
    teacher = normal(3, 6, seed=1).requires_grad_()
    student = normal(3, 6, seed=2).requires_grad_()
    loss = per_task_distillation(teacher, student, sizes, 2.0)
    assert gradient(loss, teacher) is None
    received = gradient(loss, student)
    assert received is not None
    assert torch.isfinite(received).all()
    assert received[:, :2].ne(0).all()
    assert received[:, 4:].eq(0).all()
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

    def slow(classes: slice) -> float:
        total = sum(
            divergence(
                softmax(teacher[b, classes].tolist(), temperature),
                softmax(student[b, classes].tolist(), temperature),
            )
            for b in range(batch)
        )
        return temperature**2 * total / batch

    of_past = past_distillation(teacher, student, past, temperature)
    of_new = new_task_distillation(teacher, student, past, seen, temperature)
    assert near(of_past, slow(slice(0, past)))
    assert near(of_new, slow(slice(past, seen)))


def test_distillation_touches_only_the_classes_it_is_about() -> None:
    teacher, student = (normal(3, 6, seed=seed).requires_grad_() for seed in (1, 2))
    of_past = past_distillation(teacher, student, 2, 2.0)
    of_new = new_task_distillation(teacher, student, 2, 5, 2.0)
    assert gradient(of_past, teacher) is None
    assert gradient(of_new, teacher) is None
    from_past, from_new = gradient(of_past, student), gradient(of_new, student)
    assert from_past is not None
    assert from_new is not None
    assert from_past.ne(0).any(dim=0).tolist() == [True, True, False, False, False, False]
    assert from_new.ne(0).any(dim=0).tolist() == [False, False, True, True, True, False]


@generated
@given(past=st.integers(1, 6), new=st.integers(1, 6), batch=batches, seed=seeds)
def test_the_ensemble_agrees_with_loops_sums_to_one_and_keeps_the_largest(
    past: int, new: int, batch: int, seed: int
) -> None:
    seen = past + new
    past_logits, new_logits = normal(batch, seen, seed=seed), normal(batch, seen, seed=seed + 1)
    target = ensemble_target_from_logits(past_logits, new_logits, past, seen)
    for b in range(batch):
        p = softmax(past_logits[b, :past].tolist())
        c = softmax(new_logits[b, past:].tolist())
        largest = p.index(max(p))
        e = (1 - max(p)) * new / (seen - 1)
        others = (seen - new - 1) / (seen - 1)
        expected = [
            *(value if k == largest else value * others for k, value in enumerate(p)),
            *(e * value for value in c),
        ]
        assert target[b].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-15)
        assert float(target[b].sum()) == pytest.approx(1, abs=1e-12)
        assert float(target[b, largest]) == pytest.approx(max(p), rel=1e-15)


def test_of_equally_likely_past_classes_one_keeps_its_probability() -> None:
    target = ensemble_target(torch.full((1, 4), 0.25), torch.full((1, 2), 0.5))
    assert float(target.sum()) == pytest.approx(1)
    assert target.eq(0.25).sum() == 1


@generated
@given(past=st.integers(1, 4), new=st.integers(1, 4), batch=batches, seed=seeds)
def test_soft_global_distillation_agrees_with_loops(
    past: int, new: int, batch: int, seed: int
) -> None:
    seen = past + new
    logits = normal(batch, seen, seed=seed)
    target = ensemble_target_from_logits(
        normal(batch, seen, seed=seed + 1), normal(batch, seen, seed=seed + 2), past, seen
    )
    mask = some(batch, seed)
    rows = [divergence(target[b].tolist(), softmax(logits[b].tolist())) for b in range(batch)]
    assert near(soft_global_distillation(logits, target), sum(rows))
    chosen = sum(row for row, counts in zip(rows, mask, strict=True) if counts)
    assert near(soft_global_distillation(logits, target, mask), chosen)


def test_the_two_teachers_of_the_ensemble_learn_nothing() -> None:
    past_logits, new_logits, student = (normal(3, 5, seed=s).requires_grad_() for s in range(3))
    target = ensemble_target_from_logits(past_logits, new_logits, 3, 5)
    loss = soft_global_distillation(student, target)
    assert gradient(loss, past_logits) is None
    assert gradient(loss, new_logits) is None
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
