"""The pieces of the losses as one kernel each, for float32 logits on CUDA.

A kernel makes the loss of each row and the gradient of the row's logits at once; the backward pass
only multiplies that by the gradient of the loss. What torch does in a dozen steps of 2 µs, one
after the other, is then one or two. Rows are added up in an order that their number alone fixes,
so a loss has the same bits in every run. The equations stand with the functions that choose between
torch and these kernels; logits that are not numbers or not finite give what they give there.

One compilation serves all numbers of rows, columns and tasks: with every task there are more.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from distillmatch.cuda.compiled import Argument, Kernel, load_if_possible

FOLDER = "losses/cuda"
NAMES = ("cross_entropy", "divergence", "add_up", "join_labels", "add_losses")
WARPS = 16
"""The rows that a program has at a time, or a row's groups of columns."""
THREADS, SHARED_BYTES = 32 * WARPS, 4 * WARPS
FEW = 64
"""So many are left to one program, in turns, and need no second kernel to add up."""
MOST_RUNS = 64
"""Tasks of other sizes than those before: they are arguments of a launch."""

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
        given = (count, total, consistency, distillation, *map(float, weights))
        _launch("add_losses", 1, labels_sum, *given, threads=1)
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


class _Groups(ctypes.Structure):
    """Groups of columns side by side, as runs of groups of the same size."""

    _fields_ = (
        ("sizes", ctypes.c_int * MOST_RUNS),
        ("counts", ctypes.c_int * MOST_RUNS),
        ("runs", ctypes.c_int),
        ("groups", ctypes.c_int),
        ("columns", ctypes.c_int),
    )


def available(device: int) -> bool:
    """Tell whether a device has the kernels, which are loaded when it is first asked."""
    return _kernels(device) is not None


@functools.cache
def _kernels(device: int) -> dict[str, Kernel] | None:
    constants, instead = {"WARPS": WARPS, "RUNS": MOST_RUNS}, "torch's own losses are used"
    given = (NAMES, constants, SHARED_BYTES, instead)
    kernels = load_if_possible(FOLDER, device, "losses.cu", *given)
    return None if kernels is None else dict(zip(NAMES, kernels, strict=True))


def _launch(
    name: str, programs: int, first: Tensor, *others: Argument, threads: int = THREADS
) -> None:
    kernels = _kernels(first.get_device())
    assert kernels is not None
    kernels[name].launch((programs, 1), threads, SHARED_BYTES, (first, *others))


def _sum(
    name: str, items: int, logits: Tensor, before: Sequence[Argument], after: Sequence[Argument]
) -> Tensor:
    """Return the sum of what a kernel makes of items, which their number alone shares out.

    The kernel's arguments are the logits, some, where its programs write, and some more.
    """
    programs = 1 if items <= FEW else -(-items // WARPS)
    losses = logits.new_empty(() if programs == 1 else programs)
    _launch(name, programs, logits, *before, losses, *after)
    if programs == 1:
        return losses
    total = logits.new_empty(())
    _launch("add_up", 1, losses, total, programs)
    return total


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
    mask = None if mask is None else mask.bool()
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
    gradient = _gradient_of(logits, wanted)
    labels, *others = vectors
    strides = (logits.stride(0), 0 if weak is None else weak.stride(0))
    before = (labels, weak, *others)
    after = (gradient, rows, columns, *strides, float(threshold), factor, passed_over)
    return _sum("cross_entropy", rows, logits, before, after), gradient


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
    mask = None if mask is None else mask.bool().contiguous()

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
    gradient = _gradient_of(student, wanted)
    listed = _listed(groups.sizes)
    other = teacher if target is None else target
    strides = (student.stride(0), 0 if other is None else other.stride(0))
    share = groups.factor / rows if groups.mean and mask is None else groups.factor
    factors = (1 / groups.temperature, float(share), groups.by_size, groups.mean)
    before = (teacher, target, mask)
    after = (gradient, listed, rows, columns, groups.first, *strides, *factors)
    return _sum("divergence", rows * listed.groups, student, before, after), gradient


def runs_of(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return runs of groups of the same size, which the kernel is given: the size and how many."""
    return [(size, len(list(same))) for size, same in groupby(filter(None, sizes))]


def _listed(sizes: Sequence[int]) -> _Groups:
    """Return groups of columns as the kernel takes them."""
    runs = runs_of(sizes)
    listed = _Groups(runs=len(runs), groups=sum(same for _, same in runs), columns=sum(sizes))
    for number, (size, same) in enumerate(runs):
        listed.sizes[number], listed.counts[number] = size, same
    return listed


def join_labels(
    labels: Tensor, guesses: Tensor, accepted: Tensor, passed_over: int
) -> tuple[Tensor, Tensor]:
    """Return the labels followed by the guesses, those not accepted passed over, and the count."""
    joined = labels.new_empty(len(labels) + len(guesses))
    count = labels.new_empty(())
    parts = [part.contiguous() for part in (labels, guesses, accepted.bool())]
    lengths = (len(labels), len(guesses))
    _launch("join_labels", 1, *parts, joined, count, *lengths, passed_over)
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
