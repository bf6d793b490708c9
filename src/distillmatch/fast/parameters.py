"""Gradient descent and rounding of all parameters of a network, in few launches.

torch's own give a thread block up to 65,536 numbers of one tensor, so that a small network keeps a
few multiprocessors busy while the others wait.
"""

import ctypes
import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from distillmatch.fast.compiler import Argument, Kernel, load
from distillmatch.fast.operators import Call, Draw, Operator

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
    """Return whether the kernels take weights with their gradients and velocities."""
    return _available(weights) and all(
        _is_dense(weight)
        and all(
            other.dtype == weight.dtype == torch.float32 and other.stride() == weight.stride()
            for other in beside
        )
        for weight, *beside in zip(weights, *others, strict=True)
    )


def rounds(numbers: Sequence[Tensor], rounded: Sequence[Tensor]) -> bool:
    """Return whether the kernel rounds numbers to where they shall be rounded."""
    return _available(numbers) and all(
        number.dtype == torch.float32
        and to.dtype == torch.bfloat16
        and to.stride() == number.stride()
        and _is_dense(number)
        and number.numel() % 2 == 0
        for number, to in zip(numbers, rounded, strict=True)
    )


def _descend(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    *more: Any,
) -> Any:
    lists, (rate, momentum, weight_decay, clip) = (weights, gradients, velocities), more
    if not descends(*lists):
        return NotImplemented
    pieces, squares = 0, None
    if clip is not None:
        pieces = sum(map(_pieces, weights))
        squares = torch.empty(pieces, device=weights[0].device)
        _launch("add_squares", lists, lambda first: (squares[first:],))
    numbers = rate, momentum, weight_decay, squares, pieces, clip or 0.0
    _launch("descend", lists, lambda _: numbers)
    return None


def _plain_descend(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocities: Sequence[Tensor],
    rate: Tensor,
    momentum: float,
    weight_decay: float,
    clip: float | None,
) -> None:
    factor: Tensor | float = 1.0
    if clip is not None:
        norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
        factor = (clip / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6)).clamp(max=1)
    for weight, gradient, velocity in zip(weights, gradients, velocities, strict=True):
        velocity.mul_(momentum).add_(factor * gradient + weight_decay * weight)
        weight.sub_(rate * velocity)


def _round(numbers: Sequence[Tensor]) -> Any:
    made = _rounded_places(numbers)
    if not rounds(numbers, made):
        return NotImplemented
    _launch("round_numbers", (numbers, made))
    return made


def _plain_round(numbers: Sequence[Tensor]) -> list[Tensor]:
    made = _rounded_places(numbers)
    torch._foreach_copy_(made, list(numbers))
    return made


def _rounded_places(numbers: Sequence[Tensor]) -> list[Tensor]:
    return [
        torch.empty_like(one, dtype=torch.bfloat16, memory_format=torch.channels_last)
        for one in numbers
    ]


def _available(tensors: Sequence[Tensor]) -> bool:
    if not tensors or not all(tensor.is_cuda for tensor in tensors):
        return False
    return _kernels(tensors[0].get_device()) is not None


def _is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor's numbers lie side by side, in whatever order."""
    return tensor.is_contiguous() or (
        tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def _launch(
    name: str,
    lists: Sequence[Sequence[Tensor]],
    more: Callable[[int], Sequence[Argument]] = lambda _: (),
) -> None:
    """Launch a kernel over lists of tensors; `more` returns what else it is given at a piece."""
    kernels = _kernels(lists[0][0].get_device())
    assert kernels is not None
    first = 0
    for start in range(0, len(lists[0]), MOST):
        several = [one[start : start + MOST] for one in lists]
        given, pieces = _listed(several)
        kernels[name].launch((pieces, 1), THREADS, THREADS * 4, (given, *more(first)))
        first += pieces


def _listed(lists: Sequence[Sequence[Tensor]]) -> tuple[_Tensors, int]:
    """Return lists of tensors as a kernel takes them, and how many thread blocks they need."""
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
    kernels = load(device, ["parameters.cu"], names, constants, 0)
    return None if kernels is None else dict(zip(names, kernels, strict=True))


def _descend_examples(draw: Draw) -> Iterable[Call]:
    for clip in (None, 1.0, 1e6):
        lists = [[draw.numbers(size) for size in (10, 5000, 64)] for _ in range(3)]
        yield *lists, torch.full((), 0.1, device=draw.device), 0.9, 0.01, clip


def _round_examples(draw: Draw) -> Iterable[Call]:
    weights = draw.numbers(16, 3, 3, 3), draw.numbers(32, 16, 3, 3)
    yield ([one.contiguous(memory_format=torch.channels_last) for one in weights],)


descend = Operator(
    "descend_(Tensor(a!)[] weights, Tensor[] gradients, Tensor(b!)[] velocities, Tensor rate, "
    "float momentum, float weight_decay, float? clip) -> ()",
    _plain_descend,
    _descend,
    _descend_examples,
)
"""Take a step of gradient descent with momentum and weight decay, by gradients whose norm is
clipped together, if it is."""

round_to_bfloat16 = Operator(
    "round_to_bfloat16(Tensor[] numbers) -> Tensor[]", _plain_round, _round, _round_examples
)
"""Return the weights of convolutions in bfloat16, in the layout that is fast there."""
