"""Convolutions with few channels, by a kernel that reads its maps once.

With 32 channels a library's 3×3 convolution waits for the second-level cache, from which it reads
the maps nine times; ours keeps its weights in registers while the maps go by. With 128 channels the
library is faster. Both were measured: docs/performance.md.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distillmatch.networks.kernels.compiled import Kernel, load_if_possible

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


class Layout(NamedTuple):
    """How the kernel shares out its work. The sizes are those fastest on an H200."""

    channels_in: int
    channels_out: int
    height: int
    width: int
    transposed: bool
    room: int
    """Shared memory of a program, at most."""

    @property
    def warps_of_part(self) -> int:
        """Warps that read the same rows: each makes 16 pixels and 16 channels."""
        return self.width // 16 * (self.channels_out // 16)

    @property
    def bytes_of_weights(self) -> int:
        """What the weights take of shared memory, on their way to registers."""
        depth = max(16, self.channels_in)
        if self.transposed:
            return 9 * depth * (self.channels_out * 2 + 16)
        return self.channels_out * (9 * depth * 2 + 16)

    @property
    def bytes_of_part(self) -> int:
        """What the rows of one part of the warps take."""
        row = (self.width + 2) * (max(16, self.channels_in) * 2 + 16)
        return (self.stages * STEP + 1) * row

    @property
    def stages(self) -> int:
        """Steps whose rows are in shared memory or on their way."""
        return 4 if (self.channels_in, self.channels_out) == (32, 16) else 6

    @property
    def most_warps(self) -> int:
        """Warps of a program where there is room: few have many registers, for weights."""
        if self.channels_in == 64:
            return 8
        return 12 if self.channels_in == self.channels_out == self.width == 32 else 16

    @property
    def parts(self) -> int:
        """Parts of the warps, as many as there is room for: none if it is too small."""
        fit = (self.room - self.bytes_of_weights) // self.bytes_of_part
        return max(0, min(self.most_warps // self.warps_of_part, fit))

    @property
    def threads(self) -> int:
        """Threads of a program."""
        return 32 * self.parts * self.warps_of_part

    @property
    def shared_bytes(self) -> int:
        """What a program keeps in shared memory."""
        return self.bytes_of_weights + self.parts * self.bytes_of_part

    @property
    def constants(self) -> dict[str, int]:
        """What the compiler is told."""
        return {
            "CHANNELS_IN": self.channels_in,
            "CHANNELS_OUT": self.channels_out,
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "STEP": STEP,
            "STAGES": self.stages,
            "PARTS": self.parts,
            "AHEAD": 2 if self.most_warps == 16 else 3,
            "TRANSPOSED": int(self.transposed),
        }


def takes(maps: Tensor, weight: Tensor, stride: int, *, transposed: bool = False) -> bool:
    """Tell whether the kernel can convolve the maps; transposed, whether it can take back to them.

    `maps` are those that the kernel would read. Weights and maps must be channels-last.
    """
    channels_out, channels_in, side, _ = weight.shape
    height, width = maps.shape[2:]
    return (
        width in WIDTHS.get((channels_in, channels_out), ())
        and not (transposed and channels_in == 3)
        and side == 3
        and stride == 1
        and height % STEP == 0
        and maps.dtype == weight.dtype == torch.bfloat16
        and len(maps) > 0
        and _kernel(maps.get_device(), _layout(maps, weight, transposed)) is not None
    )


def convolve(maps: Tensor, weight: Tensor, *, transposed: bool = False) -> Tensor:
    """Convolve maps; transposed, take the gradient of a convolution's output to its input."""
    layout = _layout(maps, weight, transposed)
    images, _, height, width = maps.shape
    result = torch.empty(
        (images, layout.channels_out, height, width),
        dtype=maps.dtype,
        device=maps.device,
        memory_format=torch.channels_last,
    )
    kernel = _kernel(maps.get_device(), layout)
    assert kernel is not None
    steps = images * height // STEP
    processors = torch.cuda.get_device_properties(maps.device).multi_processor_count
    kernel.launch(
        (max(1, min(steps // layout.parts, processors)), 1),
        layout.threads,
        layout.shared_bytes,
        [maps, weight, result, steps],
    )
    return result


def _layout(maps: Tensor, weight: Tensor, transposed: bool) -> Layout:
    """Share out the work: transposed, the kernel reads the convolution's channels out."""
    channels_out, channels_in = weight.shape[:2]
    if transposed:
        channels_in, channels_out = channels_out, channels_in
    height, width = maps.shape[2:]
    properties: Any = torch.cuda.get_device_properties(maps.device)
    room = properties.shared_memory_per_block_optin
    return Layout(channels_in, channels_out, height, width, transposed, room)


@functools.cache
def _kernel(device: int, layout: Layout) -> Kernel | None:
    if layout.parts == 0:
        return None
    given = ["convolve"], layout.constants, layout.shared_bytes
    kernels = load_if_possible(device, "convolution.cu", *given, "cuDNN's convolution is used")
    return None if kernels is None else kernels[0]
