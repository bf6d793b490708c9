"""Normalization by running statistics, ReLU and residual sum in one pass, forward and back.

For the layers of a frozen network whose convolution is not ours, which would do it where it
stores: docs/performance.md. Of activated maps the way back needs one bit a number, whether it is
above zero: `signs` are bytes by image, row, column and eight channels.
"""

import ctypes
import functools
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from distillmatch.fast.compiled import Argument, Kernel
from distillmatch.fast.sources import load_if_possible

if TYPE_CHECKING:
    from distillmatch.networks.normalization import BatchNorm

MOST = 64
"""Layers of a launch: their addresses are arguments, for which there are 4096 bytes."""
THREADS = 256
MOST_THREADS = 512
TURNS = 4
"""Times that a thread takes eight channels of a pixel."""
NAMES = ("make_coefficients", "activate", "take_back")


class Coefficients(NamedTuple):
    """What a layer multiplies a channel's numbers by, and what it adds to them then."""

    scales: Tensor
    shifts: Tensor


class Activated(NamedTuple):
    """What is made of maps that are normalized, after a shortcut is added if there is one."""

    maps: Tensor
    total: Tensor | None
    """What was normalized, where it is needed again."""
    signs: Tensor | None


class _Layers(ctypes.Structure):
    _fields_ = (
        ("weights", ctypes.c_void_p * MOST),
        ("biases", ctypes.c_void_p * MOST),
        ("means", ctypes.c_void_p * MOST),
        ("variances", ctypes.c_void_p * MOST),
        ("epsilons", ctypes.c_float * MOST),
        ("channels", ctypes.c_int * MOST),
        ("firsts", ctypes.c_int * MOST),
    )


def takes(norms: Sequence["BatchNorm"]) -> bool:
    """Tell whether the kernels can do what the layers do in evaluation."""
    device = norms[0].weight.device
    if device.type != "cuda" or not all(norm.is_plain(device) for norm in norms):
        return False
    channels = {norm.tensors[0].shape[0] for norm in norms}
    fits = all(one % 8 == 0 and one // 8 <= MOST_THREADS for one in channels)
    return fits and _kernels(device.index) is not None


def coefficients(norms: Sequence["BatchNorm"]) -> list[Coefficients]:
    """Return those of all layers, in one launch."""
    device = norms[0].weight.device
    tensors = [norm.tensors for norm in norms]
    counts = [weight.shape[0] for weight, *_ in tensors]
    epsilons = [norm.epsilon for norm in norms]
    made = torch.empty(2, sum(counts), device=device)
    done = 0
    for start in range(0, len(norms), MOST):
        some = slice(start, start + MOST)
        several = counts[some]
        given = _listed(tensors[some], epsilons[some], several)
        scales, shifts = made[:, done:]
        _kernel(device.index, "make_coefficients").launch(
            (len(several), 1), THREADS, 0, [given, scales, shifts]
        )
        done += sum(several)
    scales, shifts = made
    return list(map(Coefficients, scales.split(counts), shifts.split(counts)))


def activate(
    maps: Tensor, by: Coefficients, shortcut: Tensor | None, keeps_total: bool, keeps_signs: bool
) -> Activated:
    """Return the ReLU of maps, with the shortcut if there is one, normalized."""
    activated = torch.empty_like(maps)
    sum_to = torch.empty_like(maps) if keeps_total and shortcut is not None else None
    signs = new_signs(maps) if keeps_signs else None
    _launch("activate", activated, [maps, shortcut, sum_to, activated, signs, *by], ())
    total = maps if keeps_total and shortcut is None else sum_to
    return Activated(activated, total, signs)


def take_back(
    given: Tensor, signs: Tensor, by: Coefficients, of_sum: Tensor | None, positions: int = 1
) -> Tensor:
    """Take the gradient of activated maps to what was normalized, and add the gradient of the sum.

    `positions` share a gradient: those of an image where it is that of their mean.
    """
    images, height, width, groups = signs.shape
    result = torch.empty(
        (images, 8 * groups, height, width),
        dtype=given.dtype,
        device=given.device,
        memory_format=torch.channels_last,
    )
    _launch("take_back", result, [given, of_sum, result, signs, by.scales], (positions,))
    return result


def new_signs(maps: Tensor) -> Tensor:
    """Return the place for the signs of maps."""
    images, channels, height, width = maps.shape
    return torch.empty(
        (images, height, width, channels // 8), dtype=torch.uint8, device=maps.device
    )


def _launch(name: str, made: Tensor, tensors: list[Argument], more: tuple[int, ...]) -> None:
    groups, pieces = made.shape[1] // 8, made.numel() // 8
    threads = max(1, THREADS // groups) * groups
    programs = -(-pieces // (threads * TURNS))
    kernel = _kernel(made.get_device(), name)
    kernel.launch((programs, 1), threads, 0, [*tensors, groups, *more, pieces])


def _listed(
    tensors: Sequence[Sequence[Tensor]], epsilons: Sequence[float], channels: Sequence[int]
) -> _Layers:
    given, count = _Layers(), len(tensors)
    places = given.weights, given.biases, given.means, given.variances
    for place, of_all in zip(places, zip(*tensors, strict=True), strict=True):
        place[:count] = [one.data_ptr() for one in of_all]
    given.epsilons[:count] = epsilons
    given.channels[:count] = channels
    given.firsts[:count] = [0, *accumulate(channels[:-1])]
    return given


def _kernel(device: int, name: str) -> Kernel:
    kernels = _kernels(device)
    assert kernels is not None
    return kernels[name]


@functools.cache
def _kernels(device: int) -> dict[str, Kernel] | None:
    constants = {"MOST": MOST, "THREADS": THREADS, "MOST_THREADS": MOST_THREADS, "TURNS": TURNS}
    given = NAMES, constants, 0, "torch's normalization is used"
    parts = ["activation.cu"]
    kernels = load_if_possible(device, "running_statistics.cu", *given, parts=parts)
    return None if kernels is None else dict(zip(NAMES, kernels, strict=True))
