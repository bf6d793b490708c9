"""Weight gradients of convolutions of 1×1 or 3×3 taps, of any stride, size and number of channels.

For each position of the convolved maps the kernel reads all that lies under the taps, what
neighbours have in common several times. Where cuda_weight_gradient can do it, that is faster.
"""

import ctypes
import functools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from distillmatch.cuda.compiled import Kernel, device_properties
from distillmatch.networks.kernels.cuda_weight_gradient import (
    ADD_THREADS,
    PROGRAMS,
    PROGRAMS_OF_FEW,
    add_shares,
)
from distillmatch.networks.kernels.sharing import LARGE_BATCH
from distillmatch.networks.kernels.sources import load_if_possible

WARPS, WARP_COLUMNS = 8, 72
"""Warps of a program, and columns of the result that one of them makes, at most."""
ADD_COLUMNS = 16
"""Groups of four numbers that a program adds up: neighbouring threads read 256 bytes."""


@dataclass(frozen=True)
class Layout:
    """How the kernel shares out a weight gradient, the same for all sizes of maps.

    It is found out once: `_kept_layout` has one for each size.
    """

    side: int
    channels_in: int
    channels_out: int
    room: int
    """Shared memory of a program, at most."""

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Channels out and in of a program: where shared memory is small, fewer."""
        inside = next(size for size in (8, 16, 32) if size >= min(self.channels_in, 32))
        most = 64 if self.room >= 160 * 1024 else 32
        return next(size for size in (16, 32, 64) if size >= min(self.channels_out, most)), inside

    @cached_property
    def tiles(self) -> int:
        """Programs that make different channels of the same share."""
        out, inside = self.tile
        return -(-self.channels_out // out) * -(-self.channels_in // inside)

    @cached_property
    def columns(self) -> int:
        """Columns of a program's result: its channels in, under each tap."""
        return self.side**2 * self.tile[1]

    @cached_property
    def groups(self) -> int:
        """Groups of warps, which divide the positions."""
        return WARPS // max(1, self.columns // WARP_COLUMNS)

    @cached_property
    def positions(self) -> int:
        """Positions that are read at a time."""
        return (16 if self.side == 1 else 32) * self.groups

    @cached_property
    def stage_bytes(self) -> int:
        """What they take of shared memory."""
        return self.positions * 16 * ((self.columns // 8 | 1) + (self.tile[0] // 8 | 1))

    @cached_property
    def stages(self) -> int:
        """How often that is there or on its way: fewer than two are too few."""
        return min(4, self.room // self.stage_bytes)

    @cached_property
    def shared_bytes(self) -> int:
        """What a program keeps in shared memory: what comes and, at the end, its sums."""
        sums = self.groups * self.tile[0] * (self.columns + 8) * 4
        return max(self.stages * self.stage_bytes, sums)

    @cached_property
    def constants(self) -> dict[str, int]:
        """What the compiler is told."""
        return {
            "SIDE": self.side,
            "TILE_IN": self.tile[1],
            "TILE_OUT": self.tile[0],
            "WHOLE_IN": int(self.channels_in % 8 == 0),
            "WHOLE_OUT": int(self.channels_out % 8 == 0),
            "STAGES": self.stages,
            "ADD_COLUMNS": ADD_COLUMNS,
            "ADD_THREADS": ADD_THREADS,
        }

    @cached_property
    def given(self) -> tuple[tuple[str, int], ...]:
        """The constants, by which kernels are found again."""
        return tuple(self.constants.items())

    @cached_property
    def count(self) -> int:
        """Numbers of the gradient, and up to three more: they are added up by fours."""
        return -(-self.channels_out * self.side**2 * self.channels_in // 4) * 4

    def shares(self, images: int, positions: int) -> int:
        """Return how many shares so many images are divided into."""
        programs = PROGRAMS if images >= LARGE_BATCH else PROGRAMS_OF_FEW
        return max(1, min(programs // self.tiles, positions // (2 * self.positions)))


class _Shape(ctypes.Structure):
    """What the kernel is told of the maps; its names are those of the source."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in (
            "positions",
            "channels_in",
            "channels_out",
            "height",
            "width",
            "out_height",
            "out_width",
            "stride",
            "count",
        )
    )


def takes(maps: Tensor, gradient: Tensor, side: int) -> bool:
    """Tell whether the kernel can make the weight gradient; both must be channels-last."""
    return (
        side in (1, 3)
        and gradient.numel() > 0
        and maps.dtype == gradient.dtype == torch.bfloat16
        and _kernels_of(maps, _layout(maps, gradient, side)) is not None
    )


def weight_gradient(maps: Tensor, gradient: Tensor, side: int, stride: int) -> Tensor:
    """Return the gradient of the weights by channel out, row, column and channel in, in float32."""
    layout = _layout(maps, gradient, side)
    kernels = _kernels_of(maps, layout)
    assert kernels is not None
    multiply, add_up = kernels
    images, channels_out, out_height, out_width = gradient.shape
    _, channels_in, height, width = maps.shape
    positions = images * out_height * out_width
    sizes = (height, width, out_height, out_width, stride, layout.count)
    shape = _Shape(positions, channels_in, channels_out, *sizes)
    shares = layout.shares(images, positions)
    partial = torch.empty(shares, layout.count, device=maps.device)
    multiply.launch(
        (shares, layout.tiles),
        WARPS * 32,
        layout.shared_bytes,
        [maps, gradient, partial, shape],
    )
    total = add_shares(add_up, partial, ADD_COLUMNS)
    wanted = channels_out * side**2 * channels_in
    return total[:wanted].view(channels_out, side, side, channels_in)


def _layout(maps: Tensor, gradient: Tensor, side: int) -> Layout:
    room = device_properties(maps.device).shared_memory_per_block_optin
    return _kept_layout(side, maps.shape[1], gradient.shape[1], room)


_kept_layout = functools.cache(Layout)


def _kernels_of(maps: Tensor, layout: Layout) -> list[Kernel] | None:
    if layout.stages < 2:
        return None
    return _kernels(maps.get_device(), layout.given, layout.shared_bytes)


@functools.cache
def _kernels(
    device: int, given: tuple[tuple[str, int], ...], shared_bytes: int
) -> list[Kernel] | None:
    """Return the kernels, which are the same for all convolutions that give these constants."""
    names, instead = ["general_weight_gradient", "add_up"], "torch's own is used"
    wanted = names, dict(given), shared_bytes, instead
    return load_if_possible(device, "general_weight_gradient.cu", *wanted, parts=["add_up.cu"])
