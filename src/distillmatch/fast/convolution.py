"""Convolutions with few channels, by a kernel that reads its maps once; others by torch.

With 32 channels a library's 3×3 convolution waits for the second-level cache, from which it reads
the maps nine times. The kernel keeps its weights in registers while the maps go by. With 128
channels the library is faster. In a frozen network the kernel also normalizes what it stores.
"""

import ctypes
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from distillmatch.concurrency import device_is_shared
from distillmatch.fast.compiler import Kernel, device_properties, load
from distillmatch.fast.operators import Call, Draw, Operator

WIDTHS = {
    (3, 16): (32, 64),
    (16, 16): (32, 64),
    (16, 32): (32, 64),
    (32, 32): (32, 64),
    (64, 64): (16,),
}
"""Widths of the maps that are taken, for the channels in and out of a convolution."""
STEP = 2
"""Rows of maps that the warps of a block read before they wait for each other."""
ADD_BEFORE, ADD_AFTER = 1, 2
"""Where a sum is taken: before the kernel normalizes, or goes backward through that, or after."""
LARGE_BATCH = 128
"""Images from which on a batch's kernels fill a device, measured on an H200 at 32 pixels."""


@dataclass(frozen=True, eq=False)
class Layout:
    """How the kernel shares out its work; `_kept_layout` keeps one for each size.

    The sizes are those that were fastest on an H200.
    """

    channels_in: int
    channels_out: int
    height: int
    width: int
    transposed: bool
    room: int
    """The most shared memory of a thread block."""
    activates: bool = False
    adds: int = 0
    """Where a sum is taken, or 0 for none."""

    @cached_property
    def warps_of_group(self) -> int:
        """Warps that read the same rows: each makes 16 pixels and up to 16 channels."""
        return self.width // 16 * (_padded(self.channels_out) // 16)

    @cached_property
    def bytes_of_weights(self) -> int:
        """Shared memory of the weights, on their way to registers."""
        depth, made = _padded(self.channels_in), _padded(self.channels_out)
        return 9 * depth * (made * 2 + 16) if self.transposed else made * (9 * depth * 2 + 16)

    @cached_property
    def bytes_of_group(self) -> int:
        """Shared memory of the rows that one group of warps reads."""
        pixel = _padded(self.channels_in) * 2 + 16
        return ((self.stages * STEP + 1) * (self.width + 1) + 1) * pixel

    @cached_property
    def stages(self) -> int:
        """Steps whose rows are in shared memory or on their way."""
        return 4 if (self.channels_in, self.channels_out) == (32, 16) else 6

    @cached_property
    def most_warps(self) -> int:
        """Warps of a block where there is room: with few each has many registers for weights."""
        if self.channels_in == 64:
            return 8
        if self.channels_in == 32 and self.activates:
            return 8 if self.warps_of_group == 8 else 12
        return 12 if self.channels_in == self.channels_out == self.width == 32 else 16

    @cached_property
    def warp_groups(self) -> int:
        """Groups of warps that there is room for: 0 if it is too small for one."""
        fit = (self.room - self.bytes_of_weights) // self.bytes_of_group
        return max(0, min(self.most_warps // self.warps_of_group, fit))

    @cached_property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warp_groups * self.warps_of_group

    @cached_property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.bytes_of_weights + self.warp_groups * self.bytes_of_group

    @cached_property
    def constants(self) -> dict[str, int]:
        """The constants of the source."""
        return {
            "CHANNELS_IN": self.channels_in,
            "CHANNELS_OUT": self.channels_out,
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "STEP": STEP,
            "STAGES": self.stages,
            "WARP_GROUPS": self.warp_groups,
            "AHEAD": 2 if self.most_warps == 16 else 3,
            "TRANSPOSED": int(self.transposed),
            "ACTIVATES": int(self.activates),
            "ADDS": self.adds,
        }


class _Epilogue(ctypes.Structure):
    """What the kernel needs besides maps, weights and result: nothing where it only convolves."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("scales", "shifts", "added", "signs", "total")
    )

    @classmethod
    def of(cls, *tensors: Tensor | None) -> "_Epilogue":
        return cls(*(None if one is None else one.data_ptr() for one in tensors))


def takes(maps: Tensor, weight: Tensor, stride: int, *, transposed: bool = False) -> bool:
    """Return whether the kernel convolves the maps; transposed, whether it goes backward to them.

    `maps` are those that the kernel would read.
    """
    return _fits(maps, weight, stride) and _available(maps, _layout(maps, weight, transposed))


def takes_activated(
    maps: Tensor, weight: Tensor, stride: int, adds: int, *, transposed: bool = False
) -> bool:
    """Return the same of a kernel that normalizes, too."""
    if not _fits(maps, weight, stride) or (transposed and weight.shape[1] == 3):
        return False
    return _available(maps, _layout(maps, weight, transposed, True, adds))


def convolve(maps: Tensor, weight: Tensor, *, transposed: bool = False) -> Tensor:
    """Convolve maps; transposed, return the gradient of the input for that of the output."""
    layout = _layout(maps, weight, transposed)
    result = empty_maps(maps, layout.channels_out, maps.shape[2:])
    _launch(maps, weight, result, layout, _Epilogue())
    return result


def convolve_and_activate(
    maps: Tensor,
    weight: Tensor,
    scales: Tensor,
    shifts: Tensor,
    shortcut: Tensor | None,
    keeps_total: bool,
    keeps_signs: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the ReLU of normalized convolved maps, with the shortcut if there is one.

    Then what was normalized, and the signs of the result, where they are to be kept.
    """
    layout = _layout(maps, weight, False, True, 0 if shortcut is None else ADD_BEFORE)
    activated = empty_maps(maps, layout.channels_out, maps.shape[2:])
    total = torch.empty_like(activated) if keeps_total else None
    signs = empty_signs(activated) if keeps_signs else None
    epilogue = _Epilogue.of(scales, shifts, shortcut, signs, total)
    _launch(maps, weight, activated, layout, epilogue)
    return activated, total, signs


def convolve_and_activate_backward(
    gradient: Tensor, weight: Tensor, scales: Tensor, signs: Tensor, added: Tensor | None, adds: int
) -> Tensor:
    """Return the gradient of what was normalized before the input, for that of the output.

    `added` is a gradient that comes another way, to be added where `adds` says, if not 0.
    """
    layout = _layout(gradient, weight, True, True, adds)
    result = empty_maps(gradient, layout.channels_out, gradient.shape[2:])
    _launch(gradient, weight, result, layout, _Epilogue.of(scales, None, added, signs, None))
    return result


def convolve_1x1(maps: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolve every `stride`-th row and column by 1×1 taps, as a matrix product.

    cuDNN converts the maps of a strided one to another layout and back, which takes several times
    as long as the product.
    """
    taken = maps[:, :, ::stride, ::stride]
    images, _, height, width = taken.shape
    made = as_rows(taken) @ weight.flatten(1).t()
    return made.view(images, height, width, -1).permute(0, 3, 1, 2)


def convolve_1x1_backward(gradient: Tensor, weight: Tensor, stride: int, onto: Tensor) -> None:
    """Add to `onto` the gradient of the maps, from that of the convolved ones."""
    matrix = weight.flatten(1)
    if stride == 1:
        onto.permute(0, 2, 3, 1).view(-1, onto.shape[1]).addmm_(as_rows(gradient), matrix)
        return
    images, _, height, width = gradient.shape
    made = torch.mm(as_rows(gradient), matrix).view(images, height, width, -1)
    onto[:, :, ::stride, ::stride] += made.permute(0, 3, 1, 2)


def as_rows(maps: Tensor) -> Tensor:
    """Return the maps as a matrix of positions by channels."""
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])


def empty_maps(like: Tensor, channels: int, side: Sequence[int]) -> Tensor:
    """Return the place for channels-last maps of another shape, for as many images."""
    return torch.empty(
        (like.shape[0], channels, *side),
        dtype=like.dtype,
        device=like.device,
        memory_format=torch.channels_last,
    )


def empty_signs(maps: Tensor) -> Tensor:
    """Return the place for the signs of maps: a byte by image, row, column and eight channels."""
    images, channels, height, width = maps.shape
    return torch.empty(
        (images, height, width, channels // 8), dtype=torch.uint8, device=maps.device
    )


def _forward(maps: Tensor, weight: Tensor, stride: int) -> Any:
    return convolve(maps, weight) if takes(maps, weight, stride) else NotImplemented


def _plain_forward(maps: Tensor, weight: Tensor, stride: int) -> Tensor:
    made = functional.conv2d(maps, weight, stride=stride, padding=weight.shape[2] // 2)
    return made.contiguous(memory_format=torch.channels_last)


def _backward(gradient: Tensor, weight: Tensor, stride: int, height: int, width: int) -> Any:
    if not takes(gradient, weight, stride, transposed=True):
        return NotImplemented
    return convolve(gradient, weight, transposed=True)


def _plain_backward(
    gradient: Tensor, weight: Tensor, stride: int, height: int, width: int
) -> Tensor:
    # The library reads nothing of the maps but their shape and layout.
    like = empty_maps(gradient, weight.shape[1], (height, width))
    strides, padding, wanted = [stride] * 2, [weight.shape[2] // 2] * 2, [True, False, False]
    how = strides, padding, [1, 1], False, [0, 0], 1, wanted
    of_maps: Tensor = torch.ops.aten.convolution_backward(gradient, like, weight, None, *how)[0]
    return of_maps.contiguous(memory_format=torch.channels_last)


def are_maps(*tensors: Tensor | None) -> bool:
    """Return whether tensors, where they are given, lie in memory as the kernels read maps."""
    return all(
        one.dtype == torch.bfloat16 and one.is_contiguous(memory_format=torch.channels_last)
        for one in tensors
        if one is not None
    )


def _fits(maps: Tensor, weight: Tensor, stride: int) -> bool:
    channels_out, channels_in, side, _ = weight.shape
    images, _, height, width = maps.shape
    return (
        width in WIDTHS.get((channels_in, channels_out), ())
        and side == 3
        and stride == 1
        and height % STEP == 0
        and images > 0
        and are_maps(maps, weight)
    )


def _available(maps: Tensor, layout: Layout) -> bool:
    return _kernel(maps.get_device(), layout) is not None


def _launch(
    maps: Tensor, weight: Tensor, result: Tensor, layout: Layout, epilogue: _Epilogue
) -> None:
    kernel = _kernel(maps.get_device(), layout)
    assert kernel is not None
    images = maps.shape[0]
    steps = images * layout.height // STEP
    kernel.launch(
        (max(1, min(steps // layout.warp_groups, max_blocks(maps.device, images))), 1),
        layout.threads,
        layout.shared_bytes,
        [maps, weight, result, steps, epilogue],
    )


def max_blocks(device: torch.device, images: int) -> int:
    """Return how many blocks that each fill a multiprocessor are launched for so many images.

    Beside other runs some multiprocessors are left to these, whose kernels then start earlier.
    """
    processors = int(device_properties(device).multi_processor_count)
    if not device_is_shared():
        return processors
    return max(1, processors // (2 if images >= LARGE_BATCH else 4))


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
    if layout.warp_groups == 0:
        return None
    files = ["activation.cu", "convolution.cu"]
    kernels = load(device, files, ["convolve"], layout.constants, layout.shared_bytes)
    return None if kernels is None else kernels[0]


def _forward_examples(draw: Draw) -> Iterable[Call]:
    for channels_in, channels_out, side in ((3, 16, 32), (16, 32, 32), (32, 32, 32), (64, 64, 16)):
        yield draw.maps(2, channels_in, side, side), draw.maps(channels_out, channels_in, 3, 3), 1


def _backward_examples(draw: Draw) -> Iterable[Call]:
    for maps, weight, stride in _forward_examples(draw):
        yield draw.maps(2, len(weight), *maps.shape[2:]), weight, stride, *maps.shape[2:]


convolution = Operator(
    "convolution(Tensor maps, Tensor weight, int stride) -> Tensor",
    _plain_forward,
    _forward,
    _forward_examples,
)
"""Convolve channels-last maps, padded by half of the taps' side."""

convolution_backward = Operator(
    "convolution_backward(Tensor gradient, Tensor weight, int stride, int height, int width) "
    "-> Tensor",
    _plain_backward,
    _backward,
    _backward_examples,
)
"""Return the gradient of the input, of this height and width, for that of the output."""
