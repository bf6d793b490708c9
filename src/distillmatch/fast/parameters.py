"""Gradient descent and rounding of all parameters of a network, in few launches.

torch's own give a program up to 65,536 numbers of one tensor, so that a small network keeps a few
multiprocessors busy while the others wait. Both were measured: docs/performance.md.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from distillmatch.fast.compiled import Argument, Kernel
from distillmatch.fast.sources import load_if_possible

MOST = 96
"""Tensors of a launch: their addresses are arguments, for which there are 4096 bytes."""
PIECE = 4096
THREADS = 256


class _Tensors(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_void_p * MOST),
        ("second", ctypes.c_void_p * MOST),
        ("third", ctypes.c_void_p * MOST),
        ("counts", ctypes.c_int * MOST),
        ("pieces", ctypes.c_int * MOST),
        ("tensors", ctypes.c_int),
    )


def descends(weights: Sequence[Tensor], *others: Sequence[Tensor]) -> bool:
    """Tell whether `descend` can take weights with their gradients and velocities."""
    return _available(weights) and all(
        _is_dense(weight)
        and all(
            other.dtype == weight.dtype == torch.float32 and other.stride() == weight.stride()
            for other in beside
        )
        for weight, *beside in zip(weights, *others, strict=True)
    )


def descend(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    rate: Tensor,
    momentum: float,
    decay: float,
    longest: float | None,
) -> bool:
    """Take a step of gradient descent with momentum and weight decay; return whether it was taken.

    The gradients together are first made no longer than `longest`, if there is such a limit.
    """
    if not descends(weights, gradients, velocities):
        return False
    lists = weights, gradients, velocities
    pieces, squares = 0, None
    if longest is not None:
        pieces = sum(map(_pieces, weights))
        squares = torch.empty(pieces, device=weights[0].device)
        _launch("add_squares", lists, lambda first: (squares[first:],))
    _launch("descend", lists, lambda _: (rate, momentum, decay, squares, pieces, longest or 0.0))
    return True


def rounded(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return the weights of convolutions in bfloat16, in the layout that is fast there."""
    with torch.no_grad():
        made = [
            torch.empty_like(one, dtype=torch.bfloat16, memory_format=torch.channels_last)
            for one in weights
        ]
        if rounds(weights, made):
            round_to(made, weights)
        else:
            torch._foreach_copy_(made, list(weights))
    return made


def rounds(numbers: Sequence[Tensor], rounded: Sequence[Tensor]) -> bool:
    """Tell whether `round_to` can round the numbers."""
    return _available(numbers) and all(
        number.dtype == torch.float32
        and to.dtype == torch.bfloat16
        and to.stride() == number.stride()
        and _is_dense(number)
        and number.numel() % 2 == 0
        for number, to in zip(numbers, rounded, strict=True)
    )


def round_to(rounded: Sequence[Tensor], numbers: Sequence[Tensor]) -> None:
    """Round numbers to bfloat16."""
    _launch("round_numbers", (numbers, rounded))


def _available(tensors: Sequence[Tensor]) -> bool:
    if not tensors or not all(tensor.is_cuda for tensor in tensors):
        return False
    return _kernels(tensors[0].get_device()) is not None


def _is_dense(tensor: Tensor) -> bool:
    """Tell whether a tensor's numbers lie side by side, in whatever order."""
    return tensor.is_contiguous() or (
        tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def _launch(
    name: str,
    lists: Sequence[Sequence[Tensor]],
    more: Callable[[int], Sequence[Argument]] = lambda _: (),
) -> None:
    """Launch a kernel over lists of tensors; `more` says what else it is given from a piece on."""
    kernels = _kernels(lists[0][0].get_device())
    assert kernels is not None
    first = 0
    for start in range(0, len(lists[0]), MOST):
        several = [one[start : start + MOST] for one in lists]
        given, pieces = _listed(several)
        kernels[name].launch((pieces, 1), THREADS, THREADS * 4, (given, *more(first)))
        first += pieces


def _listed(lists: Sequence[Sequence[Tensor]]) -> tuple[_Tensors, int]:
    """Return lists of tensors as a kernel takes them, and how many programs they need."""
    count = len(lists[0])
    given = _Tensors(tensors=count)
    for place, tensors in zip((given.first, given.second, given.third), lists, strict=False):
        place[:count] = [tensor.data_ptr() for tensor in tensors]
    given.counts[:count] = [tensor.numel() for tensor in lists[0]]
    *before, pieces = accumulate(map(_pieces, lists[0]), initial=0)
    given.pieces[:count] = before
    return given, pieces


def _pieces(tensor: Tensor) -> int:
    return -(-tensor.numel() // PIECE)


@functools.cache
def _kernels(device: int) -> dict[str, Kernel] | None:
    constants = {"MOST": MOST, "PIECE": PIECE, "THREADS": THREADS}
    names = ["descend", "add_squares", "round_numbers"]
    instead = "torch's own are used"
    kernels = load_if_possible(device, "parameters.cu", names, constants, 0, instead)
    return None if kernels is None else dict(zip(names, kernels, strict=True))
