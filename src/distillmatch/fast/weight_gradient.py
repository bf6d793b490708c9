"""Weight gradients of convolutions, by a kernel that reads maps and gradients once.

A weight gradient is a product of matrices, a few channels high and wide, over hundreds of thousands
of positions. The warps go down the rows of all images and make all nine taps of what they read; a
second kernel adds up the sums of a launch's thread blocks. Sizes that the kernel does not take are
torch's, or a matrix product for 1×1 taps. All are computed on a companion stream: nothing of the
backward pass waits for them but its end.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from distillmatch.concurrency import companion_stream, device_is_shared
from distillmatch.fast.compiler import Kernel, load
from distillmatch.fast.convolution import LARGE_BATCH, are_maps, as_rows
from distillmatch.fast.operators import Call, Draw, Operator

WIDTHS = {
    (3, 16): (32, 64),
    (16, 32): (32, 64),
    (32, 32): (32, 64),
    (64, 64): (16, 32),
    (128, 128): (8, 16),
}
"""Widths of the maps that are taken, for the channels in and out of a convolution."""
BLOCKS, BLOCKS_OF_FEW = 132, 44
"""Thread blocks of a launch, of all channels together: one for each multiprocessor of an H200. Few
images are shared by fewer, which leave room for what runs beside them and fewer sums to add up. On
every GPU there are as many: they decide in which order sums are taken."""
STEP = 2
"""Rows of maps that the warps of a block read before they wait for each other."""
ADD_BLOCKS, ADD_THREADS = 288, 256
"""Thread blocks that add up the sums, where there is enough for them, and the threads of one."""


class WeightGradients:
    """Computes the weight gradients of a backward pass, beside its stream if that fills gaps.

    Where other runs share the device, their large batches leave none.
    """

    def __init__(self, maps: Tensor) -> None:
        self.companion: torch.cuda.Stream | None = None
        if maps.is_cuda and (len(maps) < LARGE_BATCH or not device_is_shared()):
            self.stream = torch.cuda.current_stream()
            self.companion = companion_stream(self.stream, "weight gradients")

    def of(self, maps: Tensor, gradient: Tensor, side: int, stride: int) -> Tensor:
        """Queue the gradient of a weight and return it; `wait` before it is used."""
        made: Tensor
        if self.companion is None:
            made = weight_gradient(maps, gradient, side, stride)
            return made
        self.companion.wait_stream(self.stream)
        with torch.cuda.stream(self.companion):
            made = weight_gradient(maps, gradient, side, stride)
        for read in (maps, gradient):
            # Their memory may not be used again before the companion has read it.
            read.record_stream(self.companion)
        return made

    def wait(self) -> None:
        """Let the stream wait for all that was queued beside it."""
        if self.companion is not None:
            self.stream.wait_stream(self.companion)


@dataclass(frozen=True, eq=False)
class Layout:
    """How the kernel shares out a weight gradient, `_kept_layout` keeps one for each size.

    The sizes are those that were fastest on an H200.
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
        """Channels out and in of a thread block."""
        return min(self.channels_out, 32), max(min(self.channels_in, 32), 16)

    @cached_property
    def tiles(self) -> int:
        """Thread blocks that make different channels of the same share."""
        out, inside = self.tile
        return self.channels_out // out * max(1, self.channels_in // inside)

    @cached_property
    def constants(self) -> dict[str, int]:
        """The constants of the source."""
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
            "WARP_GROUPS": (256 if few else 64) // row,
            "STEP": STEP,
            "STAGES": 4 if few else 6,
            "ADD_COLUMNS": self.add_columns,
            "ADD_THREADS": ADD_THREADS,
        }

    @cached_property
    def threads(self) -> int:
        """Threads of a block."""
        given, (tile_out, tile_in) = self.constants, self.tile
        columns = self.images * self.width // 16
        of_channels = tile_out // given["WARP_OUT"] * (tile_in // given["WARP_IN"])
        return 32 * given["WARP_GROUPS"] * columns * of_channels * (3 // given["WARP_ACROSS"])

    @cached_property
    def shared_bytes(self) -> int:
        """Shared memory of a block: rows that come and, at the end, its sums."""
        given, (tile_out, tile_in) = self.constants, self.tile
        row = self.images * self.width
        of_maps = self.images * (self.width + 2) * (tile_in * 2 + 16)
        of_gradient = row * (tile_out * 2 + 16)
        ring = given["STAGES"] * STEP * (of_maps + of_gradient) + of_gradient
        sums = row // 16 * tile_out * (9 * tile_in + 8) * 4
        return given["WARP_GROUPS"] * max(ring, sums)

    @cached_property
    def fours(self) -> int:
        """Fours of numbers of the gradient, which are added up at once."""
        return self.channels_out * 9 * self.channels_in // 4

    @cached_property
    def add_columns(self) -> int:
        """Fours that a thread block adds up; neighboring threads read neighboring ones."""
        return max(4, self.fours // ADD_BLOCKS)

    def steps(self, images: int) -> int:
        """Return the steps of so many images."""
        return images // self.images * self.height // STEP

    def shares(self, images: int) -> int:
        """Return the shares that so many images are divided into."""
        blocks = BLOCKS if images >= LARGE_BATCH else BLOCKS_OF_FEW
        return max(
            1, min(blocks // self.tiles, self.steps(images) // self.constants["WARP_GROUPS"])
        )


def takes(maps: Tensor, gradient: Tensor, side: int, stride: int) -> bool:
    """Return whether the kernel takes a weight gradient."""
    layout = _layout(maps, gradient)
    return (
        layout.width in WIDTHS.get((layout.channels_in, layout.channels_out), ())
        and side == 3
        and stride == 1
        and layout.height % STEP == 0
        and maps.shape[0] > 0
        and maps.shape[0] % layout.images == 0
        and are_maps(maps, gradient)
        and _kernels(maps.get_device(), layout) is not None
    )


def _by_kernels(maps: Tensor, gradient: Tensor, side: int, stride: int) -> Any:
    if takes(maps, gradient, side, stride):
        return _by_streams(maps, gradient)
    if side == 1 and maps.dtype == torch.bfloat16:
        taken = as_rows(maps[:, :, ::stride, ::stride])
        made = torch.mm(as_rows(gradient).t(), taken, out_dtype=torch.float32)
        return made[:, :, None, None]
    return NotImplemented


def _by_streams(maps: Tensor, gradient: Tensor) -> Tensor:
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
    total = _add_shares(add_up, partial, layout.add_columns)
    made = total.view(layout.channels_out, 3, 3, layout.channels_in)
    return made.permute(0, 3, 1, 2)


def _add_shares(add_up: Kernel, partial: Tensor, columns: int) -> Tensor:
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


def _plain(maps: Tensor, gradient: Tensor, side: int, stride: int) -> Tensor:
    """Return it as torch makes it, which rounds it to the maps' precision."""
    shape = (gradient.shape[1], maps.shape[1], side, side)
    made: Tensor = conv2d_weight(maps, shape, gradient, stride=stride, padding=side // 2)  # type: ignore[no-untyped-call]
    dtype = torch.promote_types(maps.dtype, torch.float32)
    return made.to(dtype, memory_format=torch.channels_last)


def _layout(maps: Tensor, gradient: Tensor) -> Layout:
    _, channels_in, height, width = maps.shape
    return _kept_layout(channels_in, gradient.shape[1], height, width)


_kept_layout = functools.cache(Layout)


@functools.cache
def _kernels(device: int, layout: Layout) -> list[Kernel] | None:
    names, files = ["weight_gradient", "add_up"], ["weight_gradient.cu"]
    return load(device, files, names, layout.constants, layout.shared_bytes)


def _examples(draw: Draw) -> Iterable[Call]:
    for inside, outside, side in ((3, 16, 32), (32, 32, 32), (64, 64, 16), (128, 128, 8)):
        yield draw.maps(4, inside, side, side), draw.maps(4, outside, side, side), 3, 1
    yield draw.maps(4, 16, 8, 8), draw.maps(4, 32, 4, 4), 1, 2


weight_gradient = Operator(
    "convolution_weight_gradient(Tensor maps, Tensor gradient, int side, int stride) -> Tensor",
    _plain,
    _by_kernels,
    _examples,
)
"""Return the gradient of a convolution's weight, in float32 and channels-last."""
