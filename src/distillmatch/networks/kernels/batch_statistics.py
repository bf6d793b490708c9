"""Normalization by a batch's statistics with ReLU, by a kernel that reads its maps once.

Statistics are known only when all maps have been read, so a kernel for each step of it reads them
again; ours keeps them in shared memory meanwhile, as far as they fit, and its programs wait for
each other. Both were measured: docs/performance.md.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distillmatch.networks.kernels.compiled import Kernel, load_if_possible
from distillmatch.networks.kernels.sharing import device_is_shared

THREADS = 512
AHEAD = 2
PROGRAMS_EACH = 2
"""Programs that a multiprocessor may have at a time."""
FEW_PASSES, MANY_PASSES = 2, 8
"""Rows that a thread has at least, where the maps have so many; and from where on two programs a
multiprocessor are faster than one."""
SUM, CHANGE = 1, 2
"""The phases of a kernel."""
GROUPS = (32, 16)
"""Channels that a program may have."""


class Shape(NamedTuple):
    """How a batch of maps is shared by the programs of a launch."""

    rows: int
    leading: int
    channels: int
    group: int
    programs: int
    programs_of_first: int

    @classmethod
    def of(cls, maps: Tensor, leading: int | None) -> "Shape":
        """Share out maps whose first `leading` images, all if none are named, are a part."""
        images, channels, height, width = maps.shape
        rows = images * height * width
        first = rows if leading is None else leading * height * width
        group = _group(channels)
        processors = torch.cuda.get_device_properties(maps.device).multi_processor_count
        groups, at_once = channels // group, THREADS // (group // 8)
        many = rows * groups >= MANY_PASSES * at_once * processors
        most = (PROGRAMS_EACH if many else 1) * processors // groups
        parts = 1 if first == rows else 2
        programs = max(parts, min(most, rows // (FEW_PASSES * at_once)))
        of_first = programs
        if parts == 2:
            of_first = min(max(round(programs * first / rows), 1), programs - 1)
        return cls(rows, first, channels, group, programs, of_first)

    @property
    def parts(self) -> int:
        """How many parts have statistics of their own."""
        return 1 if self.leading == self.rows else 2

    @property
    def sums(self) -> tuple[int, int]:
        """The numbers that the programs leave for each other."""
        return self.programs, 2 * self.channels

    def launched_together(self, device: torch.device) -> bool:
        """Tell whether one launch does both phases.

        Such launches overlap with those of other runs only where they do not fill the device.
        """
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return not device_is_shared() or self.programs * (self.channels // self.group) <= processors

    def room(self, device: torch.device, kept: int) -> int:
        """Return how many rows of `kept` tensors a program keeps in shared memory."""
        of_first = -(-self.leading // self.programs_of_first)
        others = self.programs - self.programs_of_first
        of_others = -(-(self.rows - self.leading) // others) if others else 0
        room = (_shared_bytes(device.index) - _scratch(self.group)) // (kept * 2 * self.group)
        return min(max(of_first, of_others), room)


def takes(maps: Tensor) -> bool:
    """Tell whether the kernels can take the maps, which must be channels-last."""
    channels = maps.shape[1]
    if maps.dtype != torch.bfloat16 or channels % GROUPS[-1] or len(maps) < 2:
        return False
    properties: Any = torch.cuda.get_device_properties(maps.device)
    enough = properties.multi_processor_count >= 2 * channels // _group(channels)
    return enough and _kernels(maps.get_device(), _group(channels)) is not None


def new_counters(channels: int, device: torch.device) -> Tensor:
    """Return what programs count each other by; zeros before and after every launch."""
    return torch.zeros(2 * channels // GROUPS[-1], dtype=torch.int32, device=device)


def normalize(
    maps: Tensor,
    shortcut: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor],
    counters: Tensor,
    leading: int | None,
    moves: bool,
    momentum: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum of maps and shortcut, the ReLU of it normalized, and by what it was."""
    shape = Shape.of(maps, leading)
    summed = maps if shortcut is None else torch.empty_like(maps)
    activated = torch.empty_like(maps)
    coefficients = torch.empty(shape.parts, 4, shape.channels, device=maps.device)
    partial = torch.empty(shape.sums, device=maps.device)
    tensors = (maps, shortcut, summed, activated, weight, bias, *running, coefficients, partial)
    _launch(0, shape, (*tensors, counters), 1, (int(moves), momentum, epsilon))
    return summed, activated, coefficients


def take_back(
    given: Tensor,
    of_sum: Tensor | None,
    maps: Tensor,
    coefficients: Tensor,
    counters: Tensor,
    leading: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the maps, of weight and of bias."""
    shape = Shape.of(maps, leading)
    of_maps = torch.empty_like(maps)
    of_weight = torch.empty(shape.channels, device=maps.device)
    of_bias = torch.empty(shape.channels, device=maps.device)
    partial = torch.empty(shape.sums, device=maps.device)
    tensors = (given, of_sum, maps, of_maps, coefficients, of_weight, of_bias, partial, counters)
    _launch(1, shape, tensors, 2, ())
    return of_maps, of_weight, of_bias


def _launch(
    which: int, shape: Shape, tensors: Sequence[Tensor | None], kept: int, more: tuple[float, ...]
) -> None:
    """Launch a kernel that may keep `kept` numbers for each of its maps': at once, or twice."""
    maps = tensors[0]
    assert maps is not None
    kernels = _kernels(maps.get_device(), shape.group)
    assert kernels is not None
    together = shape.launched_together(maps.device)
    room = shape.room(maps.device, kept) if together else 0
    for phases in (SUM | CHANGE,) if together else (SUM, CHANGE):
        layout = shape.rows, shape.leading, shape.channels, shape.programs_of_first, phases, room
        kernels[which].launch(
            (shape.programs, shape.channels // shape.group),
            THREADS,
            room * kept * 2 * shape.group + _scratch(shape.group),
            (*tensors, *layout, *more),
            together=together,
        )


def _group(channels: int) -> int:
    return next(group for group in GROUPS if channels % group == 0)


def _scratch(group: int) -> int:
    """Return the bytes a program needs to add up its sums."""
    return (THREADS // 32 + 1) * 2 * group * 4


@functools.cache
def _shared_bytes(device: int) -> int:
    """Return the shared memory that a program may have."""
    properties: Any = torch.cuda.get_device_properties(device)
    each = properties.shared_memory_per_multiprocessor // PROGRAMS_EACH - 1024
    return int(min(properties.shared_memory_per_block_optin, each)) // 16 * 16


@functools.cache
def _kernels(device: int, group: int) -> list[Kernel] | None:
    constants = {"GROUP": group, "THREADS": THREADS, "AHEAD": AHEAD, "EACH": PROGRAMS_EACH}
    given = ["normalize", "take_back"], constants, _shared_bytes(device)
    return load_if_possible(device, "normalization.cu", *given, "torch's normalization is used")
