"""Weight gradients of 3×3 convolutions, by a kernel that reads maps and gradients once.

Its warps go down the rows of all images and make all nine taps of what they read; the sums of a
launch's programs are added up by a second kernel. It was measured: docs/performance.md.
"""

import functools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from distillmatch.fast.compiled import Kernel
from distillmatch.fast.sharing import LARGE_BATCH
from distillmatch.fast.sources import load_if_possible

WIDTHS = {
    (3, 16): (32, 64),
    (16, 32): (32, 64),
    (32, 32): (32, 64),
    (64, 64): (16, 32),
    (128, 128): (8, 16),
}
"""Widths of the maps that are taken, for the channels in and out of a convolution."""
PROGRAMS, PROGRAMS_OF_FEW = 132, 44
"""Programs of a launch, those of all channels together: one for each multiprocessor of an H200. Few
images are shared by fewer, which leave room for what runs beside them and fewer sums to add up.
Elsewhere there are as many: they decide in which order sums are taken."""
STEP = 2
"""Rows of maps that a program's warps read before they wait for each other."""
ADD_PROGRAMS, ADD_THREADS = 288, 256
"""Programs that add up the sums, where there is enough for them, and the threads of one."""


@dataclass(frozen=True, eq=False)
class Layout:
    """How the kernel shares out a weight gradient, found out once: `_kept_layout` has one a size.

    The sizes are those fastest on an H200.
    """

    channels_in: int
    channels_out: int
    height: int
    width: int

    @cached_property
    def images(self) -> int:
        """Images that lie side by side in a row."""
        return 2 if self.width == 8 else 1

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Channels out and in of a program."""
        return min(self.channels_out, 32), max(min(self.channels_in, 32), 16)

    @cached_property
    def tiles(self) -> int:
        """Programs that make different channels of the same share."""
        out, inside = self.tile
        return self.channels_out // out * max(1, self.channels_in // inside)

    @cached_property
    def constants(self) -> dict[str, int]:
        """What the compiler is told."""
        few, (tile_out, tile_in) = self.channels_in == 3, self.tile
        row = self.images * self.width
        return {
            "CHANNELS_IN": self.channels_in,
            "CHANNELS_OUT": self.channels_out,
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "TILE_IN": tile_in,
            "TILE_OUT": tile_out,
            "WARP_IN": 16,
            "WARP_OUT": tile_out,
            "WARP_ACROSS": 1 if self.channels_in == 16 else 3,
            "PARTS": (256 if few else 64) // row,
            "STEP": STEP,
            "STAGES": 4 if few else 6,
            "ADD_COLUMNS": self.add_columns,
            "ADD_THREADS": ADD_THREADS,
        }

    @cached_property
    def threads(self) -> int:
        """Threads of a program."""
        given, (tile_out, tile_in) = self.constants, self.tile
        columns = self.images * self.width // 16
        of_channels = tile_out // given["WARP_OUT"] * (tile_in // given["WARP_IN"])
        return 32 * given["PARTS"] * columns * of_channels * (3 // given["WARP_ACROSS"])

    @cached_property
    def shared_bytes(self) -> int:
        """What a program keeps in shared memory: rows that come and, at the end, its sums."""
        given, (tile_out, tile_in) = self.constants, self.tile
        row = self.images * self.width
        of_maps = self.images * (self.width + 2) * (tile_in * 2 + 16)
        of_gradient = row * (tile_out * 2 + 16)
        ring = given["STAGES"] * STEP * (of_maps + of_gradient) + of_gradient
        sums = row // 16 * tile_out * (9 * tile_in + 8) * 4
        return given["PARTS"] * max(ring, sums)

    @cached_property
    def fours(self) -> int:
        """Groups of four numbers of the gradient, which are added up at once."""
        return self.channels_out * 9 * self.channels_in // 4

    @cached_property
    def add_columns(self) -> int:
        """Groups that a program adds up; neighbouring threads read neighbouring ones."""
        return max(4, self.fours // ADD_PROGRAMS)

    def steps(self, images: int) -> int:
        """Return how many steps so many images are."""
        return images // self.images * self.height // STEP

    def shares(self, images: int) -> int:
        """Return how many shares so many images are divided into."""
        programs = PROGRAMS if images >= LARGE_BATCH else PROGRAMS_OF_FEW
        return max(1, min(programs // self.tiles, self.steps(images) // self.constants["PARTS"]))


def takes(maps: Tensor, gradient: Tensor, side: int, stride: int) -> bool:
    """Tell whether the kernel can make the weight gradient; both must be channels-last."""
    layout = _layout(maps, gradient)
    return (
        layout.width in WIDTHS.get((layout.channels_in, layout.channels_out), ())
        and side == 3
        and stride == 1
        and layout.height % STEP == 0
        and maps.shape[0] > 0
        and maps.shape[0] % layout.images == 0
        and maps.dtype == gradient.dtype == torch.bfloat16
        and _kernels(maps.get_device(), layout) is not None
    )


def weight_gradient(maps: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of the weights by channel out, row, column and channel in, in float32."""
    layout = _layout(maps, gradient)
    kernels = _kernels(maps.get_device(), layout)
    assert kernels is not None
    multiply, add_up = kernels
    images, count = maps.shape[0], layout.channels_out * 9 * layout.channels_in
    shares = layout.shares(images)
    partial = torch.empty(shares, count, device=maps.device)
    multiply.launch(
        (shares, layout.tiles),
        layout.threads,
        layout.shared_bytes,
        [maps, gradient, partial, layout.steps(images)],
    )
    total = add_shares(add_up, partial, layout.add_columns)
    return total.view(layout.channels_out, 3, 3, layout.channels_in)


def add_shares(add_up: Kernel, partial: Tensor, columns: int) -> Tensor:
    """Return the sum of all rows; the kernel was made for so many columns of four numbers."""
    shares, count = partial.shape
    if shares == 1:
        return partial[0]
    total = partial.new_empty(count)
    add_up.launch(
        (-(-count // (4 * columns)), 1),
        ADD_THREADS,
        ADD_THREADS * 16,
        [partial, total, count // 4, shares],
    )
    return total


def _layout(maps: Tensor, gradient: Tensor) -> Layout:
    _, channels_in, height, width = maps.shape
    return _kept_layout(channels_in, gradient.shape[1], height, width)


_kept_layout = functools.cache(Layout)


@functools.cache
def _kernels(device: int, layout: Layout) -> list[Kernel] | None:
    names = ["weight_gradient", "add_up"]
    given = names, layout.constants, layout.shared_bytes, "cuDNN's is used"
    return load_if_possible(device, "weight_gradient.cu", *given, parts=["add_up.cu"])
