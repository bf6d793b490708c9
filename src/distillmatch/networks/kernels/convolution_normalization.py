"""A 3×3 convolution and the normalization by batch statistics beside it, by one kernel.

What is convolved stays in shared memory until its statistics are known, so it is read once less and
a launch is saved. Forward the normalization is that after the convolution; on the way back it is
that before it. It was measured: docs/performance.md.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from distillmatch.cuda.compiled import Kernel, device_properties
from distillmatch.networks.kernels.batch_statistics import (
    CHANGE,
    SUM,
    Gradients,
    Normalized,
    counters_of,
    moving_parts,
    sizes_of,
)
from distillmatch.networks.kernels.convolution import STEP, new_maps, stream_constants
from distillmatch.networks.kernels.parts import MOST_PARTS, kernel_parts, share_programs
from distillmatch.networks.kernels.sharing import device_is_shared
from distillmatch.networks.kernels.sources import load_if_possible

if TYPE_CHECKING:
    from distillmatch.networks.normalization import BatchNorm


class Sizes(NamedTuple):
    """What was fastest on an H200."""

    parts: int
    """Streams of rows that a program has."""
    stages: int
    """Steps whose rows are in shared memory or on their way."""
    ahead: int
    """Matrices that are loaded before they are multiplied."""
    change_each: int
    """Programs of the second of two launches that a multiprocessor has at a time."""


FORWARD = {
    (16, 32, 32): Sizes(4, 4, 2, 2),
    (32, 32, 32): Sizes(3, 4, 3, 3),
    (64, 64, 16): Sizes(2, 6, 3, 4),
}
BACK = {(32, 32, 32): Sizes(3, 4, 3, 2), (64, 64, 16): Sizes(2, 6, 3, 3)}
"""By the channels that are read and made, and the width of the maps."""


@dataclass(frozen=True, eq=False)
class Layout:
    """How the kernel is made, found out once: `_kept_layout` has one for each size."""

    channels_in: int
    channels_out: int
    height: int
    width: int
    back: bool
    adds: bool
    room: int
    """Shared memory of a program, at most."""

    @cached_property
    def sizes(self) -> Sizes | None:
        """How much there is of all, if the kernel can be made."""
        known = BACK if self.back else FORWARD
        return known.get((self.channels_in, self.channels_out, self.width))

    @cached_property
    def constants(self) -> dict[str, int]:
        """What the compiler is told."""
        sizes = self._sizes()
        shape = self.channels_in, self.channels_out, self.height, self.width
        streams = sizes.parts, sizes.stages, sizes.ahead
        return {
            **stream_constants(shape, *streams, transposed=self.back),
            "CHANGE_EACH": sizes.change_each,
            "ADDS": int(self.adds),
            "MOST_PARTS": MOST_PARTS,
        }

    @cached_property
    def threads(self) -> int:
        """Threads of a program: a warp of each part makes 16 pixels and 16 channels."""
        return 32 * self._sizes().parts * (self.width // 16) * (self.channels_out // 16)

    @cached_property
    def bytes_of_weights(self) -> int:
        """What the weights take of shared memory, on their way to registers."""
        if self.back:
            return 9 * self.channels_in * (self.channels_out * 2 + 16)
        return self.channels_out * (9 * self.channels_in * 2 + 16)

    @cached_property
    def bytes_of_rings(self) -> int:
        """What the rows take that come."""
        pixel = self.channels_in * 2 + 16
        place = (self.width + 1) * pixel
        return self._sizes().parts * ((self._sizes().stages * STEP + 1) * place + pixel)

    @cached_property
    def bytes_of_row(self) -> int:
        """What a row takes that is kept."""
        return self.width * self.channels_out * 2

    @cached_property
    def bytes_of_change(self) -> int:
        """What the second of two launches needs to add up sums."""
        numbers = 2 * self.channels_out * 4
        return self.threads * 16 + 2 * numbers

    def _sizes(self) -> Sizes:
        assert self.sizes is not None
        return self.sizes


class Shares(NamedTuple):
    """How the rows of a batch are shared by programs; it decides in which order sums are taken."""

    sizes: tuple[int, ...]
    """Steps of rows of each part."""
    programs_of: tuple[int, ...]
    """Programs of each part."""

    @classmethod
    def of(cls, layout: Layout, images: tuple[int, ...], most: int) -> "Shares":
        """Share out parts of so many images by `most` programs."""
        sizes = tuple(one * (layout.height // STEP) for one in images)
        programs = max(2, len(sizes), min(most, sum(sizes) // layout._sizes().parts))
        return cls(sizes, share_programs(programs, sizes))

    @property
    def steps(self) -> int:
        """How many steps all rows are."""
        return sum(self.sizes)

    @property
    def programs(self) -> int:
        """How many programs leave sums."""
        return sum(self.programs_of)

    def rows_kept(self, layout: Layout) -> tuple[int, int]:
        """Return the rows of its output, and of maps beside it, that a program has room for."""
        most = max(-(-steps // programs) for steps, programs in zip(*self, strict=True))
        fit = (layout.room - layout.bytes_of_rings) // layout.bytes_of_row
        kept = min(STEP * most, fit)
        return kept, min(STEP * most, fit - kept) if layout.back else 0

    def change(self, layout: Layout, processors: int) -> "Shares":
        """Return how the second of two launches shares them."""
        pieces = self.steps * STEP * layout.bytes_of_row // 16
        enough = min(pieces // (2 * layout.threads), self.steps // 4)
        most = layout._sizes().change_each * processors
        programs = max(2, len(self.sizes), min(most, enough))
        return Shares(self.sizes, share_programs(programs, self.sizes))


def takes(maps: Tensor, weight: Tensor, stride: int, *, adds: bool) -> bool:
    """Tell whether maps can be convolved and normalized at once; `adds` if there is a shortcut.

    Weights and maps must be channels-last.
    """
    return _takes(maps, weight, stride, _layout(maps, weight, back=False, adds=adds))


def takes_back(given: Tensor, weight: Tensor, stride: int) -> bool:
    """Tell whether gradients of convolved maps can be taken back at once to those normalized."""
    return _takes(given, weight, stride, _layout(given, weight, back=True, adds=False))


def normalize(
    maps: Tensor, weight: Tensor, shortcut: Tensor | None, norm: "BatchNorm"
) -> tuple[Tensor, Normalized]:
    """Return the ReLU of convolved maps, or of their sum with a shortcut, normalized."""
    layout = _layout(maps, weight, back=False, adds=shortcut is not None)
    summed, activated = new_maps(maps, layout.channels_out), new_maps(maps, layout.channels_out)
    sizes = sizes_of(norm, maps.shape[0])
    coefficients = torch.empty(len(sizes), 4, layout.channels_out, device=maps.device)
    tensors = maps, weight, shortcut, summed, activated, None
    more = *norm.tensors, coefficients, None, None
    _launch(layout, (*tensors, *more), norm, sizes)
    return activated, Normalized(summed, coefficients, sizes)


def take_back(
    given: Tensor, weight: Tensor, of_sum: Tensor | None, to: Normalized, norm: "BatchNorm"
) -> Gradients:
    """Return the gradients of what was normalized before a convolution, and of that layer.

    `given` are those of what was convolved; `of_sum` is added to those of what was normalized.
    """
    layout = _layout(given, weight, back=True, adds=False)
    made = Gradients(
        new_maps(given, layout.channels_out),
        torch.empty(layout.channels_out, device=given.device),
        torch.empty(layout.channels_out, device=given.device),
    )
    tensors = given, weight, to.maps, made.maps, None, of_sum, None, None
    more = None, None, to.coefficients, made.weight, made.bias
    _launch(layout, (*tensors, *more), norm, to.sizes)
    return made


def _launch(
    layout: Layout, tensors: Sequence[Tensor | None], norm: "BatchNorm", sizes: tuple[int, ...]
) -> None:
    """Launch the kernel: at once if it has the device alone, else twice.

    It fills every multiprocessor, so a launch whose programs wait for each other lets no other run
    beside it.
    """
    maps = tensors[0]
    assert maps is not None
    kernels = _kernels(maps.get_device(), layout)
    assert kernels is not None
    processors = device_properties(maps.device).multi_processor_count
    shares = _kept_shares(layout, sizes, processors)
    partial = torch.empty(shares.programs, 2 * layout.channels_out, device=maps.device)
    tensors = (*tensors, partial, counters_of(norm, maps.device))
    parts = kernel_parts(*shares)
    together = not device_is_shared()
    room = _kept_rows(shares, layout) if together else (0, 0)
    before_rings = max(layout.bytes_of_weights, sum(room) * layout.bytes_of_row)
    more = *room, before_rings, moving_parts(norm), norm.momentum, norm.epsilon
    phases = SUM | CHANGE if together else SUM
    kernels[0].launch(
        (shares.programs, 1),
        layout.threads,
        before_rings + layout.bytes_of_rings,
        (*tensors, parts, parts, shares.steps, phases, *more),
        together=together,
    )
    if not together:
        changing = _kept_changes(shares, layout, processors)
        kernels[1].launch(
            (changing.programs, 1),
            layout.threads,
            layout.bytes_of_change,
            (*tensors, parts, kernel_parts(*changing), shares.steps, CHANGE, *more),
        )


def _takes(maps: Tensor, weight: Tensor, stride: int, layout: Layout) -> bool:
    return (
        layout.sizes is not None
        and weight.shape[2] == 3
        and stride == 1
        and layout.height % STEP == 0
        and maps.dtype == weight.dtype == torch.bfloat16
        and maps.shape[0] * layout.height // STEP >= 2 * layout.sizes.parts
        and layout.bytes_of_weights + layout.bytes_of_rings <= layout.room
        and _kernels(maps.get_device(), layout) is not None
    )


def _layout(maps: Tensor, weight: Tensor, *, back: bool, adds: bool) -> Layout:
    """Describe the kernel for maps that it reads: back, they have the channels out."""
    made, read, _, _ = weight.shape
    if back:
        made, read = read, made
    _, _, height, width = maps.shape
    room = device_properties(maps.device).shared_memory_per_block_optin
    return _kept_layout(read, made, height, width, back, adds, room)


_kept_layout = functools.cache(Layout)
_kept_shares = functools.cache(Shares.of)
_kept_rows = functools.cache(Shares.rows_kept)
_kept_changes = functools.cache(Shares.change)


@functools.cache
def _kernels(device: int, layout: Layout) -> list[Kernel] | None:
    given = ["convolve_and_normalize", "change"], layout.constants, layout.room
    instead = "a kernel for each is used"
    file, parts = "convolution_normalization.cu", ["eight_numbers.cu", "parts.cu", "row_streams.cu"]
    return load_if_possible(device, file, *given, instead, parts=parts)
