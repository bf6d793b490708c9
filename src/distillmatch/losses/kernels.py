"""The pieces of the losses as one kernel each, for float32 logits on CUDA.

A kernel makes the loss of each row and the gradient of the row's logits at once; the backward pass
only multiplies that by the gradient of the loss. What torch does in a dozen steps of 2 µs, one
after the other, is then one or two. Rows are added up in an order that their number alone fixes,
so a loss has the same bits in every run. The equations stand with the functions that choose between
torch and these kernels; logits that are not numbers or not finite give what they give there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from distillmatch.losses.fused import padded, padded_width
from distillmatch.losses.row_kernels import (
    cross_entropy_kernel,
    divergence_kernel,
    join_kernel,
    total_kernel,
)

TILE = 512
"""The columns that a program holds: a single one for all rows, which would need no second kernel to
add up, was slower."""

Made = tuple[Tensor, Tensor | None]


class _WithGradient(torch.autograd.Function):
    """A loss that is made together with the gradient of its logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, make: Callable[[Tensor, bool], Made]) -> Tensor:
        loss, gradient = make(logits, ctx.needs_input_grad[0])
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * given, None


class _Total(torch.autograd.Function):
    """DistillMatch's total of up to three losses."""

    @staticmethod
    def forward(
        ctx: Any,
        labels_sum: Tensor,
        count: Tensor,
        consistency: Tensor | None,
        distillation: Tensor | None,
        weights: tuple[float, float],
    ) -> Tensor:
        total = torch.empty_like(labels_sum)
        total_kernel[(1,)](
            labels_sum, count, total, consistency, distillation, *weights, num_warps=1
        )
        ctx.save_for_backward(count)
        ctx.weights = weights
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        (count,) = ctx.saved_tensors
        needed = ctx.needs_input_grad
        of_labels = given / count if needed[0] else None
        others = [
            None if not need else given if weight == 1 else given * weight
            for need, weight in zip(needed[2:4], ctx.weights, strict=True)
        ]
        return of_labels, None, *others, None


class _Plan(NamedTuple):
    """How the rows are shared among programs."""

    programs: int
    block_rows: int

    @classmethod
    def of(cls, rows: int, width: int) -> "_Plan":
        """Share out rows of so many columns, by their number alone."""
        block_rows = min(triton.next_power_of_2(rows), max(1, TILE // width))
        return cls(triton.cdiv(rows, block_rows), block_rows)


def _losses(logits: Tensor, plan: _Plan) -> Tensor:
    """Return where the programs write: one number, or one each."""
    return logits.new_empty(() if plan.programs == 1 else plan.programs)


def _added_up(losses: Tensor) -> Tensor:
    """Return the sum over the programs."""
    return losses if losses.ndim == 0 else losses.sum()


def _gradient_of(logits: Tensor, wanted: bool) -> Tensor | None:
    return logits.new_empty(logits.shape) if wanted else None


def cross_entropy_sum(
    logits: Tensor,
    labels: Tensor,
    class_weights: Tensor | None,
    mask: Tensor | None,
    passed_over: int,
) -> Tensor:
    """Return Σ_b 1(mask_b) · w(y_b) · CE(y_b, softmax(z_b)), over labels that are not passed over.

    A label that is no class gives NaN.
    """
    vectors = [None if one is None else one.contiguous() for one in (labels, class_weights, mask)]

    def make(logits: Tensor, wanted: bool) -> Made:
        return _cross_entropy(logits, None, vectors, wanted, passed_over, 0.0, 1.0)

    return _apply(logits, make)


def consistency(weak: Tensor, strong: Tensor, threshold: float) -> Tensor:
    """Return the mean over b of 1(max q_b ≥ τ) · CE(argmax q_b, softmax(strong_b))."""
    weak = weak.detach()

    def make(logits: Tensor, wanted: bool) -> Made:
        nothing = [None, None, None]
        share = 1 / len(logits)
        return _cross_entropy(logits, weak, nothing, wanted, 0, threshold, share)

    return _apply(strong, make)


def _cross_entropy(
    logits: Tensor,
    weak: Tensor | None,
    vectors: Sequence[Tensor | None],
    wanted: bool,
    passed_over: int,
    threshold: float,
    factor: float,
) -> Made:
    rows, columns = logits.shape
    labels, weights, mask = vectors
    width = padded_width(columns)
    plan = _Plan.of(rows, width)
    losses, gradient = _losses(logits, plan), _gradient_of(logits, wanted)
    cross_entropy_kernel[(plan.programs,)](
        logits,
        labels,
        weak,
        weights,
        mask,
        losses,
        gradient,
        rows,
        columns,
        logits.stride(0),
        0 if weak is None else weak.stride(0),
        float(threshold),
        factor,
        passed_over,
        plan.block_rows,
        width,
    )
    return _added_up(losses), gradient


@dataclass(frozen=True)
class Groups:
    """Which columns of the student are told apart by themselves, and how much each group counts."""

    sizes: Sequence[int]
    first: int = 0
    factor: float = 1.0
    by_size: bool = False
    mean: bool = True
    temperature: float = 1.0


def divergence(
    student: Tensor,
    groups: Groups,
    *,
    teacher: Tensor | None = None,
    target: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return Σ_t a_t · mean_b KL( q_b,t ‖ softmax(z_b,t / T) ) over the groups t of columns.

    a_t is the groups' factor, times their size if `by_size`; `mean` is over the rows of the mask,
    and a sum otherwise. q is the softmax of the teacher's logits at T; or the target itself; or,
    with neither, uniform. Both are already cut to the columns of the groups.
    """
    teacher, target = (None if one is None else one.detach() for one in (teacher, target))
    mask = None if mask is None else mask.contiguous()

    def make(student: Tensor, wanted: bool) -> Made:
        return _divergence(student, teacher, target, mask, groups, wanted)

    return _apply(student, make)


def _divergence(
    student: Tensor,
    teacher: Tensor | None,
    target: Tensor | None,
    mask: Tensor | None,
    groups: Groups,
    wanted: bool,
) -> Made:
    rows, columns = student.shape
    runs = [(size, len(list(same))) for size, same in groupby(groups.sizes)]
    count, width = padded(groups.sizes)
    covered = sum(groups.sizes) == columns
    plan = _Plan.of(rows, count * width)
    losses, gradient = _losses(student, plan), _gradient_of(student, wanted)
    q = teacher if target is None else target
    share = groups.factor / rows if groups.mean and mask is None else groups.factor
    divergence_kernel[(plan.programs,)](
        student,
        teacher,
        target,
        mask,
        losses,
        gradient,
        rows,
        columns,
        groups.first,
        student.stride(0),
        0 if q is None else q.stride(0),
        tuple(size for size, _ in runs),
        tuple(same for _, same in runs),
        1 / groups.temperature,
        share,
        groups.by_size,
        groups.mean,
        plan.block_rows,
        count,
        width,
        0 if covered else padded_width(columns),
    )
    return _added_up(losses), gradient


def join_labels(
    labels: Tensor, guesses: Tensor, accepted: Tensor, passed_over: int
) -> tuple[Tensor, Tensor]:
    """Return the labels followed by the guesses, those not accepted passed over, and the count."""
    joined = labels.new_empty(len(labels) + len(guesses))
    count = labels.new_empty(())
    parts = (part.contiguous() for part in (labels, guesses, accepted))
    join_kernel[(1,)](*parts, joined, count, len(labels), len(guesses), passed_over)
    return joined, count


def total(
    labels_sum: Tensor,
    count: Tensor,
    consistency: Tensor | None,
    distillation: Tensor | None,
    weights: tuple[float, float],
) -> Tensor:
    """Return labels_sum / count + weights[0] · consistency + weights[1] · distillation."""
    made: Tensor = _Total.apply(labels_sum, count, consistency, distillation, weights)  # type: ignore[no-untyped-call]
    return made


def _apply(logits: Tensor, make: Callable[[Tensor, bool], Made]) -> Tensor:
    loss: Tensor = _WithGradient.apply(logits, make)  # type: ignore[no-untyped-call]
    return loss
