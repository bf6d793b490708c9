"""Convolutions with few channels, by a kernel that reads its maps once.

With 32 channels a library's 3×3 convolution waits for the second-level cache, from which it reads
the maps nine times; ours keeps its weights in registers while the maps go by. With 128 channels the
library is faster. In a frozen network it normalizes what it stores, too. All of it was measured:
docs/performance.md.
"""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from distillmatch.fast.compiled import Kernel, device_properties
from distillmatch.fast.running_statistics import Activated, Coefficients, new_signs
from distillmatch.fast.sharing import programs_at_most
from distillmatch.fast.sources import load_if_possible

WIDTHS = {
    (3, 16): (32, 64),
    (16, 16): (32, 64),
    (16, 32): (32, 64),
    (32, 32): (32, 64),
    (64, 64): (16,),
}
"""Widths of the maps that are taken, for the channels in and out of a convolution."""
STEP = 2
"""Rows of maps that a program's warps read before they wait for each other."""
SUM_BEFORE, SUM_AFTER = 1, 2
"""Where a sum is taken: before the kernel normalizes or takes back through it, or after."""


@dataclass(frozen=True, eq=False)
class Layout:
    """How the kernel shares out its work, found out once: `_kept_layout` has one for each size.

    The sizes are those fastest on an H200.
    """

    channels_in: int
    channels_out: int
    height: int
    width: int
    transposed: bool
    room: int
    """Shared memory of a program, at most."""
    activates: bool = False
    adds: int = 0
    """Whether a sum is taken: 0, or where."""

    @cached_property
    def warps_of_part(self) -> int:
        """Warps that read the same rows: each makes 16 pixels and up to 16 channels."""
        return self.width // 16 * (_padded(self.channels_out) // 16)

    @cached_property
    def bytes_of_weights(self) -> int:
        """What the weights take of shared memory, on their way to registers."""
        depth, made = _padded(self.channels_in), _padded(self.channels_out)
        return 9 * depth * (made * 2 + 16) if self.transposed else made * (9 * depth * 2 + 16)

    @cached_property
    def bytes_of_part(self) -> int:
        """What the rows of one part of the warps take."""
        pixel = _padded(self.channels_in) * 2 + 16
        return ((self.stages * STEP + 1) * (self.width + 1) + 1) * pixel

    @cached_property
    def stages(self) -> int:
        """Steps whose rows are in shared memory or on their way."""
        return 4 if (self.channels_in, self.channels_out) == (32, 16) else 6

    @cached_property
    def most_warps(self) -> int:
        """Warps of a program where there is room: few have many registers, for weights."""
        if self.channels_in == 64:
            return 8
        if self.channels_in == 32 and self.activates:
            return 8 if self.warps_of_part == 8 else 12
        return 12 if self.channels_in == self.channels_out == self.width == 32 else 16

    @cached_property
    def parts(self) -> int:
        """Parts of the warps, as many as there is room for: none if it is too small."""
        fit = (self.room - self.bytes_of_weights) // self.bytes_of_part
        return max(0, min(self.most_warps // self.warps_of_part, fit))

    @cached_property
    def threads(self) -> int:
        """Threads of a program."""
        return 32 * self.parts * self.warps_of_part

    @cached_property
    def shared_bytes(self) -> int:
        """What a program keeps in shared memory."""
        return self.bytes_of_weights + self.parts * self.bytes_of_part

    @cached_property
    def constants(self) -> dict[str, int]:
        """What the compiler is told."""
        shape = self.channels_in, self.channels_out, self.height, self.width
        streams = self.parts, self.stages, 2 if self.most_warps == 16 else 3
        return {
            **stream_constants(shape, *streams, transposed=self.transposed),
            "ACTIVATES": int(self.activates),
            "ADDS": self.adds,
        }


def stream_constants(
    shape: Sequence[int], parts: int, stages: int, ahead: int, *, transposed: bool
) -> dict[str, int]:
    """Return what the compiler is told of rows that stream through a kernel (row_streams.cu).

    The shape is channels in and out, height and width.
    """
    return {
        **dict(zip(("CHANNELS_IN", "CHANNELS_OUT", "HEIGHT", "WIDTH"), shape, strict=True)),
        "STEP": STEP,
        "STAGES": stages,
        "PARTS": parts,
        "AHEAD": ahead,
        "TRANSPOSED": int(transposed),
    }


class _Around(ctypes.Structure):
    """What the kernel needs besides maps, weights and result: nothing, where it only convolves."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("scales", "shifts", "beside", "signs", "sum")
    )


def takes(maps: Tensor, weight: Tensor, stride: int, *, transposed: bool = False) -> bool:
    """Tell whether the kernel can convolve the maps; transposed, whether it can take back to them.

    `maps` are those that the kernel would read. Weights and maps must be channels-last.
    """
    return _fits(maps, weight, stride) and _available(maps, _layout(maps, weight, transposed))


def takes_activated(
    maps: Tensor, weight: Tensor, stride: int, adds: int, *, transposed: bool = False
) -> bool:
    """Tell the same of a kernel that normalizes, too."""
    if not _fits(maps, weight, stride) or (transposed and weight.shape[1] == 3):
        return False
    return _available(maps, _layout(maps, weight, transposed, True, adds))


def convolve(maps: Tensor, weight: Tensor, *, transposed: bool = False) -> Tensor:
    """Convolve maps; transposed, take the gradient of a convolution's output to its input."""
    layout = _layout(maps, weight, transposed)
    result = new_maps(maps, layout.channels_out)
    _launch(maps, weight, result, layout, _Around())
    return result


def convolve_and_activate(
    maps: Tensor,
    weight: Tensor,
    by: Coefficients,
    shortcut: Tensor | None,
    keeps_total: bool,
    keeps_signs: bool,
) -> Activated:
    """Return the ReLU of convolved maps, with the shortcut if there is one, normalized."""
    layout = _layout(maps, weight, False, True, 0 if shortcut is None else SUM_BEFORE)
    total = new_maps(maps, layout.channels_out) if keeps_total else None
    activated = new_maps(maps, layout.channels_out)
    signs = new_signs(activated) if keeps_signs else None
    given = by.scales, by.shifts, shortcut, signs, total
    _launch(maps, weight, activated, layout, _Around(*map(_address, given)))
    return Activated(activated, total, signs)


def take_back_through_activation(
    given: Tensor, weight: Tensor, by: Coefficients, signs: Tensor, beside: Tensor | None, adds: int
) -> Tensor:
    """Take the gradient of a convolution's output to what was normalized before its input.

    `beside` is a gradient that comes by another way, to be added where `adds` says, if not 0.
    """
    layout = _layout(given, weight, True, True, adds)
    result = new_maps(given, layout.channels_out)
    around = _Around(*map(_address, (by.scales, None, beside, signs, None)))
    _launch(given, weight, result, layout, around)
    return result


def convolve_any(maps: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolve maps by our kernel, or by the library where it cannot."""
    if takes(maps, weight, stride):
        return convolve(maps, weight)
    return functional.conv2d(maps, weight, stride=stride, padding=weight.shape[2] // 2)


def take_back(given: Tensor, shape: Sequence[int], weight: Tensor, stride: int) -> Tensor:
    """Return the gradient of maps of a shape from that of the convolved ones."""
    if takes(given, weight, stride, transposed=True):
        return convolve(given, weight, transposed=True)
    # The library reads nothing of the maps but their shape and layout.
    like = torch.empty(
        tuple(shape), dtype=given.dtype, device=given.device, memory_format=torch.channels_last
    )
    padding = weight.shape[2] // 2
    of_maps: Tensor = torch.ops.aten.convolution_backward(
        given,
        like,
        weight,
        None,
        [stride, stride],
        [padding, padding],
        [1, 1],
        False,
        [0, 0],
        1,
        [True, False, False],
    )[0]
    return of_maps


def _fits(maps: Tensor, weight: Tensor, stride: int) -> bool:
    channels_out, channels_in, side, _ = weight.shape
    images, _, height, width = maps.shape
    return (
        width in WIDTHS.get((channels_in, channels_out), ())
        and side == 3
        and stride == 1
        and height % STEP == 0
        and maps.dtype == weight.dtype == torch.bfloat16
        and images > 0
    )


def _available(maps: Tensor, layout: Layout) -> bool:
    return _kernel(maps.get_device(), layout) is not None


def new_maps(maps: Tensor, channels: int) -> Tensor:
    """Return the place for what a kernel makes of maps: as many of so many channels."""
    images, _, height, width = maps.shape
    return torch.empty(
        (images, channels, height, width),
        dtype=maps.dtype,
        device=maps.device,
        memory_format=torch.channels_last,
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _launch(maps: Tensor, weight: Tensor, result: Tensor, layout: Layout, around: _Around) -> None:
    kernel = _kernel(maps.get_device(), layout)
    assert kernel is not None
    images = maps.shape[0]
    steps = images * layout.height // STEP
    kernel.launch(
        (max(1, min(steps // layout.parts, programs_at_most(maps.device, images))), 1),
        layout.threads,
        layout.shared_bytes,
        [maps, weight, result, steps, around],
    )


def _layout(
    maps: Tensor, weight: Tensor, transposed: bool, activates: bool = False, adds: int = 0
) -> Layout:
    """Share out the work: transposed, the kernel reads the convolution's channels out."""
    made, read, _, _ = weight.shape
    if transposed:
        made, read = read, made
    _, _, height, width = maps.shape
    room = device_properties(maps.device).shared_memory_per_block_optin
    return _kept_layout(read, made, height, width, transposed, room, activates, adds)


_kept_layout = functools.cache(Layout)


def _padded(channels: int) -> int:
    """Return how many channels the kernel makes of so many: it has no fewer than 16."""
    return max(16, channels)


@functools.cache
def _kernel(device: int, layout: Layout) -> Kernel | None:
    if layout.parts == 0:
        return None
    given = ["convolve"], layout.constants, layout.shared_bytes
    instead = "cuDNN's convolution is used"
    parts = ["activation.cu", "row_streams.cu"]
    kernels = load_if_possible(device, "convolution.cu", *given, instead, parts=parts)
    return None if kernels is None else kernels[0]
