"""Convolution, normalization by running statistics, ReLU and residual sum of a frozen network.

Such a normalization is a factor and a summand of each channel, which a kernel applies to what a
convolution is about to store, or in one pass afterwards. The backward pass to the images needs of
activated maps no more than which numbers are above zero: one bit each, `signs`, a byte by image,
row, column and eight channels.
"""

import ctypes
import functools
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from distillmatch.fast.compiler import Argument, Kernel, load
from distillmatch.fast.convolution import (
    ADD_AFTER,
    ADD_BEFORE,
    are_maps,
    convolution,
    convolution_backward,
    convolve_1x1,
    convolve_1x1_backward,
    convolve_and_activate,
    convolve_and_activate_backward,
    empty_maps,
    empty_signs,
    takes_activated,
)
from distillmatch.fast.operators import Call, Draw, Operator

MOST = 64
"""Layers of a launch: their addresses are arguments, for which there are 4096 bytes."""
THREADS = 256
MOST_THREADS = 512
TURNS = 4
"""Times that a thread takes eight channels of a pixel."""
NAMES = ("make_coefficients", "activate", "activate_backward")
Stored = tuple[Tensor, Tensor | None, Tensor | None]
"""Activated maps; what was normalized and the signs, where they are kept."""


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


def takes(channels: Iterable[int], device: torch.device) -> bool:
    """Return whether the kernels take layers of so many channels on a CUDA device."""
    fits = all(count % 8 == 0 and count // 8 <= MOST_THREADS for count in channels)
    return fits and _kernels(device.index) is not None


def activate(
    maps: Tensor,
    scales: Tensor,
    shifts: Tensor,
    shortcut: Tensor | None,
    keeps_total: bool,
    keeps_signs: bool,
) -> Stored:
    """Return the ReLU of normalized maps, with the shortcut if there is one."""
    activated = torch.empty_like(maps)
    sum_to = torch.empty_like(maps) if keeps_total and shortcut is not None else None
    signs = empty_signs(maps) if keeps_signs else None
    tensors: list[Argument] = [maps, shortcut, sum_to, activated, signs, scales, shifts]
    _launch("activate", activated, tensors, ())
    total = maps if keeps_total and shortcut is None else sum_to
    return activated, total, signs


def activate_backward(
    gradient: Tensor,
    signs: Tensor,
    scales: Tensor,
    total_gradient: Tensor | None,
    positions: int = 1,
) -> Tensor:
    """Return the gradient of what was normalized; its gradient from elsewhere is added.

    `positions` share a gradient: those of an image where it is that of their mean.
    """
    _, height, width, groups = signs.shape
    result = empty_maps(gradient, 8 * groups, (height, width))
    tensors: list[Argument] = [gradient, total_gradient, result, signs, scales]
    _launch("activate_backward", result, tensors, (positions,))
    return result


def _coefficients(weights: Sequence[Tensor], *more: Any) -> Any:
    (*others, epsilons), device, counts = more, weights[0].device, [len(one) for one in weights]
    if weights[0].dtype != torch.float32 or not takes(counts, device):
        return NotImplemented
    made = torch.empty(2, sum(counts), device=device)
    done = 0
    for start in range(0, len(weights), MOST):
        some = slice(start, start + MOST)
        several = counts[some]
        listed = _listed([one[some] for one in (weights, *others)], epsilons[some], several)
        scales, shifts = made[:, done:]
        kernel = _kernel(device.index, "make_coefficients")
        kernel.launch((len(several), 1), THREADS, 0, [listed, scales, shifts])
        done += sum(several)
    return made


def _plain_coefficients(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    means: Sequence[Tensor],
    variances: Sequence[Tensor],
    epsilons: Sequence[float],
) -> Tensor:
    scales, shifts = [], []
    layers = zip(weights, biases, means, variances, epsilons, strict=True)
    for weight, bias, mean, variance, epsilon in layers:
        scales.append(weight / (variance + epsilon).sqrt())
        shifts.append(bias - mean * scales[-1])
    return torch.stack([torch.cat(scales), torch.cat(shifts)])


def _forward(maps: Tensor, weight: Tensor, stride: int, scales: Tensor, *more: Any) -> Any:
    _, shortcut, _, _ = more
    if not (_fits(maps, scales) and are_maps(maps, shortcut)):
        return NotImplemented
    if takes_activated(maps, weight, stride, ADD_BEFORE if shortcut is not None else 0):
        return _filled(*convolve_and_activate(maps, weight, scales, *more))
    return _filled(*activate(convolution(maps, weight, stride), scales, *more))


def _plain_forward(
    maps: Tensor,
    weight: Tensor,
    stride: int,
    scales: Tensor,
    shifts: Tensor,
    shortcut: Tensor | None,
    keeps_total: bool,
    keeps_signs: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    total = convolution(maps, weight, stride)
    if shortcut is not None:
        total = total + shortcut
    activated: Tensor = (total * scales[:, None, None] + shifts[:, None, None]).relu().to(maps)
    signs = None
    if keeps_signs:
        images, _, height, width = activated.shape
        above = (activated > 0).long().permute(0, 2, 3, 1).reshape(images, height, width, -1, 4, 2)
        signs = (above << _shifts(maps.device)).sum((-1, -2)).to(torch.uint8)
    return _filled(activated, total if keeps_total else None, signs)


def _backward(gradient: Tensor, weight: Tensor, stride: int, *more: Any) -> Any:
    scales, signs, total_gradient, *shortcut = more
    if not (_fits(gradient, scales) and are_maps(gradient, total_gradient)):
        return NotImplemented
    has_shortcut = shortcut[0] is not None
    adds = ADD_BEFORE if has_shortcut else ADD_AFTER if total_gradient is not None else 0
    if takes_activated(gradient, weight, stride, adds, transposed=True):
        added = total_gradient
        if has_shortcut:
            added = convolve_1x1(shortcut[0], shortcut[1].transpose(0, 1), 1)
        return convolve_and_activate_backward(gradient, weight, scales, signs, added, adds)
    of_input = _input_gradient(gradient, weight, stride, signs, *shortcut)
    return activate_backward(of_input, signs, scales, total_gradient)


def _plain_backward(
    gradient: Tensor,
    weight: Tensor,
    stride: int,
    scales: Tensor,
    signs: Tensor,
    total_gradient: Tensor | None,
    shortcut_gradient: Tensor | None,
    shortcut_weight: Tensor | None,
    shortcut_stride: int,
) -> Tensor:
    shortcut = shortcut_gradient, shortcut_weight, shortcut_stride
    of_input = _input_gradient(gradient, weight, stride, signs, *shortcut)
    result = of_input * _above(signs) * scales[:, None, None]
    return (result if total_gradient is None else result + total_gradient).to(gradient)


def _input_gradient(
    gradient: Tensor,
    weight: Tensor,
    stride: int,
    signs: Tensor,
    shortcut_gradient: Tensor | None,
    shortcut_weight: Tensor | None,
    shortcut_stride: int,
) -> Tensor:
    """Return the gradient of maps that a convolution has read, and a shortcut if there is one."""
    of_input: Tensor = convolution_backward(gradient, weight, stride, *signs.shape[1:3])
    if shortcut_gradient is not None and shortcut_weight is not None:
        convolve_1x1_backward(shortcut_gradient, shortcut_weight, shortcut_stride, of_input)
    return of_input


def _mean_backward(gradient: Tensor, scales: Tensor, signs: Tensor) -> Any:
    if not _fits(gradient, scales):
        return NotImplemented
    positions = signs.shape[1] * signs.shape[2]
    return activate_backward((gradient / positions).contiguous(), signs, scales, None, positions)


def _plain_mean_backward(gradient: Tensor, scales: Tensor, signs: Tensor) -> Tensor:
    positions = signs.shape[1] * signs.shape[2]
    spread = (gradient / positions)[:, :, None, None]
    made = (spread * _above(signs) * scales[:, None, None]).to(gradient)
    return made.contiguous(memory_format=torch.channels_last)


def _filled(
    activated: Tensor, total: Tensor | None, signs: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty tensors where nothing is kept: an operator returns no None."""
    no_signs = activated.new_empty(0, dtype=torch.uint8) if signs is None else signs
    return activated, activated.new_empty(0) if total is None else total, no_signs


def _shifts(device: torch.device) -> Tensor:
    """Return the bit of each of eight channels: those of the even ones are the lower half."""
    return torch.arange(4, device=device)[:, None] + 4 * torch.arange(2, device=device)


def _above(signs: Tensor) -> Tensor:
    """Return where activated maps are above zero."""
    above = signs[..., None, None] >> _shifts(signs.device) & 1
    return above.flatten(-3).permute(0, 3, 1, 2)


def _fits(maps: Tensor, scales: Tensor) -> bool:
    return (
        maps.dtype == torch.bfloat16
        and scales.dtype == torch.float32
        and len(maps) > 0
        and takes([len(scales)], maps.device)
    )


def _launch(name: str, made: Tensor, tensors: list[Argument], more: tuple[int, ...]) -> None:
    groups, pieces = made.shape[1] // 8, made.numel() // 8
    threads = max(1, THREADS // groups) * groups
    blocks = -(-pieces // (threads * TURNS))
    kernel = _kernel(made.get_device(), name)
    kernel.launch((blocks, 1), threads, 0, [*tensors, groups, *more, pieces])


def _listed(
    tensors: Sequence[Sequence[Tensor]], epsilons: Sequence[float], channels: Sequence[int]
) -> _Layers:
    given, count = _Layers(), len(channels)
    places = given.weights, given.biases, given.means, given.variances
    for place, of_all in zip(places, tensors, strict=True):
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
    kernels = load(device, ["activation.cu", "running_norm.cu"], NAMES, constants, 0)
    return None if kernels is None else dict(zip(NAMES, kernels, strict=True))


def _coefficients_examples(draw: Draw) -> Iterable[Call]:
    def layers() -> list[Tensor]:
        return [draw.numbers(channels) for channels in (16, 640, 24)]

    yield layers(), layers(), layers(), [one.square() for one in layers()], [1e-5, 1e-3, 1e-5]


def _forward_examples(draw: Draw) -> Iterable[Call]:
    for channels, made, side, stride in ((3, 16, 32, 1), (32, 32, 32, 1), (24, 48, 8, 2)):
        maps, weight = draw.maps(2, channels, side, side), draw.maps(made, channels, 3, 3)
        shortcut = draw.maps(2, made, side, side) if channels == made else None
        yield maps, weight, stride, draw.numbers(made), draw.numbers(made), shortcut, True, True


def _backward_examples(draw: Draw) -> Iterable[Call]:
    for channels, made, side, stride in ((32, 32, 32, 1), (16, 32, 32, 1), (24, 48, 8, 2)):
        gradient = draw.maps(2, made, side // stride, side // stride)
        weight, scales = draw.maps(made, channels, 3, 3), draw.numbers(channels)
        shape = 2, side, side, channels // 8
        signs = draw.signs(*shape)
        if channels == made:
            yield gradient, weight, 1, scales, signs, draw.maps(2, 32, 32, 32), None, None, 1
        else:
            beside = draw.maps(*gradient.shape), draw.maps(made, channels, 1, 1)
            yield gradient, weight, stride, scales, signs, None, *beside, stride


def _mean_examples(draw: Draw) -> Iterable[Call]:
    signs = draw.signs(2, 8, 8, 4)
    yield draw.numbers(2, 32).to(torch.bfloat16), draw.numbers(32), signs


norm_coefficients = Operator(
    "norm_coefficients(Tensor[] weights, Tensor[] biases, Tensor[] means, Tensor[] variances, "
    "float[] epsilons) -> Tensor",
    _plain_coefficients,
    _coefficients,
    _coefficients_examples,
)
"""Return the factors and summands of all layers, as two rows."""

convolution_norm_relu = Operator(
    "convolution_norm_relu(Tensor maps, Tensor weight, int stride, Tensor scales, Tensor shifts, "
    "Tensor? shortcut, bool keeps_total, bool keeps_signs) -> (Tensor, Tensor, Tensor)",
    _plain_forward,
    _forward,
    _forward_examples,
)
"""Convolve, add the shortcut, normalize and return the ReLU; then what was normalized and the signs
of the result, empty where they are not kept."""

convolution_norm_relu_backward = Operator(
    "convolution_norm_relu_backward(Tensor gradient, Tensor weight, int stride, Tensor scales, "
    "Tensor signs, Tensor? total_gradient, Tensor? shortcut_gradient, Tensor? shortcut_weight, "
    "int shortcut_stride) -> Tensor",
    _plain_backward,
    _backward,
    _backward_examples,
)
"""Return the gradient of what was normalized before a convolution's input, for that of its output.
What was normalized may be a shortcut with a gradient of its own, or a convolved shortcut, with a
gradient, begin at the convolution's input."""

mean_relu_backward = Operator(
    "mean_relu_backward(Tensor gradient, Tensor scales, Tensor signs) -> Tensor",
    _plain_mean_backward,
    _mean_backward,
    _mean_examples,
)
"""Return the gradient of what was normalized before the mean over all positions."""
