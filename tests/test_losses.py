from collections.abc import Sequence
from math import exp, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from distillmatch.config.run import TaskWeights
from distillmatch.losses import (
    accepted,
    class_weights,
    confidence_calibration,
    consistency_loss,
    distillmatch_loss,
    ensemble_target,
    ensemble_target_from_logits,
    hard_distillation,
    new_task_distillation,
    past_distillation,
    per_task_distillation,
    pseudo_labels,
    soft_global_distillation,
    weighted_cross_entropy_sum,
)

torch.set_num_threads(1)

generated = settings(deadline=None, max_examples=60)
seeds = st.integers(0, 2**31)
batches = st.integers(1, 6)
temperatures = st.sampled_from([1.0, 2.0, 0.5, 7.0])
past_sizes = st.lists(st.integers(1, 5), min_size=1, max_size=6)
Row = Sequence[float]


def normal(*shape: int, seed: int, spread: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(shape, generator=generator, dtype=torch.float64)


def some(count: int, seed: int) -> Tensor:
    """A mask in which none, some or all are chosen, each often enough."""
    generator = torch.Generator().manual_seed(seed)
    chance = (0.0, 0.5, 1.0)[seed % 3]
    return torch.rand(count, generator=generator) < chance


def softmax(row: Row, temperature: float = 1.0) -> list[float]:
    powers = [exp((value - max(row)) / temperature) for value in row]
    return [power / sum(powers) for power in powers]


def divergence(target: Row, row: Row) -> float:
    return sum(t * (log(t) - log(r)) for t, r in zip(target, row, strict=True) if t > 0)


def near(value: Tensor, expected: float) -> bool:
    return float(value.detach()) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def gradient(loss: Tensor, of: Tensor) -> Tensor | None:
    return torch.autograd.grad(loss, of, allow_unused=True, retain_graph=True)[0]


@generated
@given(
    sizes=past_sizes,
    new=st.integers(0, 3),
    batch=batches,
    temperature=temperatures,
    weights=st.sampled_from(["equal", "class-share"]),
    masked=st.booleans(),
    seed=seeds,
)
def test_per_task_distillation_agrees_with_loops(
    sizes: list[int],
    new: int,
    batch: int,
    temperature: float,
    weights: TaskWeights,
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
        weight = 1 / len(sizes) if weights == "equal" else size / slots
        expected += weight * of_task / max(1, len(rows))
    found = per_task_distillation(
        teacher, student, sizes, temperature, weights, mask if masked else None
    )
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
    squared=st.booleans(),
    seed=seeds,
)
def test_distillation_of_all_past_and_of_the_new_classes_agrees_with_loops(
    past: int, new: int, batch: int, temperature: float, squared: bool, seed: int
) -> None:
    seen = past + new
    teacher, student = normal(batch, seen + 2, seed=seed), normal(batch, seen + 2, seed=seed + 1)
    factor = temperature**2 if squared else 1.0

    def slow(classes: slice) -> float:
        total = sum(
            divergence(
                softmax(teacher[b, classes].tolist(), temperature),
                softmax(student[b, classes].tolist(), temperature),
            )
            for b in range(batch)
        )
        return factor * total / batch

    of_past = past_distillation(teacher, student, past, temperature, squared=squared)
    of_new = new_task_distillation(teacher, student, past, seen, temperature, squared=squared)
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
    found = distillmatch_loss(
        weighted_cross_entropy_sum(labeled, labels, weights),
        weighted_cross_entropy_sum(guessed, guesses, weights, mask),
        batch,
        mask.sum(),
        consistency=torch.tensor(0.25),
        distillation=torch.tensor(0.5),
        consistency_weight=weight,
        distillation_weight=3.0,
    )
    assert near(found, expected)


@generated
@given(past=st.integers(1, 6), new=st.integers(1, 6), batch=batches, seed=seeds)
def test_the_ensemble_agrees_with_loops_sums_to_one_and_keeps_the_largest(
    past: int, new: int, batch: int, seed: int
) -> None:
    seen = past + new
    past_logits, new_logits = normal(batch, seen, seed=seed), normal(batch, seen, seed=seed + 1)
    for share, source in (("new-model", new_logits), ("past-model", past_logits)):
        target = ensemble_target_from_logits(
            past_logits,
            new_logits,
            past,
            seen,
            share,  # type: ignore[arg-type]
        )
        for b in range(batch):
            p = softmax(past_logits[b, :past].tolist())
            c = softmax(source[b, past:].tolist())
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
