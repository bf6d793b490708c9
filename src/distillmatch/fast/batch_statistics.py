"""Normalization by a batch's statistics with ReLU, by a kernel that reads its maps once.

Statistics are known only when all maps have been read, so a kernel for each step of it reads them
again; ours keeps them in shared memory meanwhile, as far as they fit, and its programs wait for
each other. Both were measured: docs/performance.md.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from distillmatch.concurrency import device_is_shared
from distillmatch.fast.compiled import Kernel, current_stream, device_properties
from distillmatch.fast.parts import MOST_PARTS, kernel_parts, share_programs
from distillmatch.fast.sources import load_if_possible

if TYPE_CHECKING:
    from distillmatch.networks.normalization import BatchNorm

THREADS = 512
AHEAD = 2
PROGRAMS_EACH = 2
"""Programs that a multiprocessor may have at a time."""
FEW_PASSES, MANY_PASSES = 4, 8
"""Rows that a thread has at least, where the maps have so many; and from where on two programs a
multiprocessor are faster than one."""
SUM, CHANGE = 1, 2
"""The phases of a kernel."""
GROUPS = (32, 16)
"""Channels that a program may have."""
FEWEST_IMAGES = 2
"""A single one is left to torch."""


_counters: "WeakKeyDictionary[BatchNorm, dict[tuple[torch.device, int], Tensor]]"
_counters = WeakKeyDictionary()


class Normalized(NamedTuple):
    """Maps that were normalized, and by what: all that the way back needs.

    Parts of so many images had statistics of their own.
    """

    maps: Tensor
    coefficients: Tensor
    sizes: tuple[int, ...]


class Gradients(NamedTuple):
    """Those of maps that were normalized, and of the layer's weight and bias."""

    maps: Tensor
    weight: Tensor
    bias: Tensor


class Shape(NamedTuple):
    """How a batch of maps is shared by the programs of a launch."""

    sizes: tuple[int, ...]
    """Rows of each part."""
    programs_of: tuple[int, ...]
    """Programs of each part."""
    channels: int
    group: int

    @staticmethod
    def of(maps: Tensor, sizes: tuple[int, ...]) -> "Shape":
        """Share out maps, parts of which have so many images."""
        return _shared_out(maps.shape, sizes, maps.device)

    @property
    def programs(self) -> int:
        """How many programs there are for each group of channels."""
        return sum(self.programs_of)

    @property
    def sums(self) -> tuple[int, int]:
        """The numbers that the programs leave for each other."""
        return self.programs, 2 * self.channels

    def launched_together(self, device: torch.device) -> bool:
        """Tell whether one launch does both phases.

        Such launches overlap with those of other runs only where they do not fill the device.
        """
        processors = device_properties(device).multi_processor_count
        return not device_is_shared() or self.programs * (self.channels // self.group) <= processors

    def room(self, device: torch.device, kept: int) -> int:
        """Return how many rows of `kept` tensors a program keeps in shared memory."""
        most = max(-(-rows // programs) for rows, programs in zip(*self[:2], strict=True))
        room = (_shared_bytes(device.index) - _scratch(self.group)) // (kept * 2 * self.group)
        return min(most, room)


@functools.cache
def _shared_out(shape: torch.Size, sizes: tuple[int, ...], device: torch.device) -> Shape:
    images, channels, height, width = shape
    rows = images * height * width
    group = _group(channels)
    processors = device_properties(device).multi_processor_count
    groups, at_once = channels // group, THREADS // (group // 8)
    many = rows * groups >= MANY_PASSES * at_once * processors
    most = (PROGRAMS_EACH if many else 1) * processors // groups
    programs = max(len(sizes), min(most, rows // (FEW_PASSES * at_once)))
    of_parts = tuple(size * height * width for size in sizes)
    return Shape(of_parts, share_programs(programs, of_parts), channels, group)


def takes(channels: int, images: int, device: torch.device) -> bool:
    """Tell whether the kernels can take channels-last maps in bfloat16 on a CUDA device."""
    if channels % GROUPS[-1] or images < FEWEST_IMAGES:
        return False
    properties = device_properties(device)
    enough = properties.multi_processor_count >= MOST_PARTS * channels // _group(channels)
    return enough and _kernels(device.index, _group(channels)) is not None


def takes_parts(sizes: Sequence[int], images: int) -> bool:
    """Tell whether the kernels can take images in parts of these sizes."""
    return len(sizes) <= MOST_PARTS and min(sizes) > 0 and sum(sizes) == images


def counters_of(norm: "BatchNorm", device: torch.device) -> Tensor:
    """Return what the programs of a layer's launch on the current stream count each other by.

    They are zeros before and after every launch. Launches of one stream follow each other; those of
    two may be under way at once, of the same layer too: a frozen network that is asked within a
    step is asked beside it about the images of the next epoch. If they shared their counters some
    programs would go on too early, and others wait for ever. A graph has the counters of the stream
    that it was captured on, and steps are captured on another one than scores.
    """
    of_streams = _counters.setdefault(norm, {})
    key = device, current_stream(device.index)
    if key not in of_streams:
        count = 2 * max(1, norm.weight.shape[0] // GROUPS[-1])
        of_streams[key] = torch.zeros(count, dtype=torch.int32, device=device)
    return of_streams[key]


def sizes_of(norm: "BatchNorm", images: int) -> tuple[int, ...]:
    """Return how many images the parts have that a layer normalizes apart."""
    return (images,) if norm.parts is None else norm.parts.sizes


def moving_parts(norm: "BatchNorm") -> int:
    """Return how many of the first parts move the layer's running statistics."""
    if not norm.moves_statistics:
        return 0
    return 1 if norm.parts is None else norm.parts.moving


def normalize(
    maps: Tensor, shortcut: Tensor | None, norm: "BatchNorm"
) -> tuple[Tensor, Normalized]:
    """Return the ReLU of maps, or of their sum with a shortcut, normalized."""
    sizes, device = sizes_of(norm, maps.shape[0]), maps.device
    shape = Shape.of(maps, sizes)
    summed = maps if shortcut is None else torch.empty_like(maps)
    activated = torch.empty_like(maps)
    coefficients = torch.empty(len(sizes), 4, shape.channels, device=device)
    made = coefficients, torch.empty(shape.sums, device=device), counters_of(norm, device)
    tensors = maps, shortcut, summed, activated, *norm.tensors, *made
    more = moving_parts(norm), norm.momentum, norm.epsilon
    _launch(0, shape, tensors, 1, more)
    return activated, Normalized(summed, coefficients, sizes)


def take_back(given: Tensor, of_sum: Tensor | None, to: Normalized, norm: "BatchNorm") -> Gradients:
    """Return the gradients of what was normalized, to which `of_sum` is added, and of the layer."""
    shape, device = Shape.of(to.maps, to.sizes), given.device
    made = Gradients(
        torch.empty_like(to.maps),
        torch.empty(shape.channels, device=device),
        torch.empty(shape.channels, device=device),
    )
    partial, counters = torch.empty(shape.sums, device=device), counters_of(norm, device)
    read = given, of_sum, to.maps
    written = made.maps, to.coefficients, made.weight, made.bias, partial, counters
    _launch(1, shape, (*read, *written), 2, ())
    return made


def _launch(
    which: int, shape: Shape, tensors: Sequence[Tensor | None], kept: int, more: tuple[float, ...]
) -> None:
    """Launch a kernel that may keep `kept` numbers for each of its maps': at once, or twice."""
    maps = tensors[0]
    assert maps is not None
    kernels = _kernels(maps.get_device(), shape.group)
    assert kernels is not None
    together = shape.launched_together(maps.device)
    room = _kept_room(shape, maps.device, kept) if together else 0
    for phases in (SUM | CHANGE,) if together else (SUM, CHANGE):
        layout = kernel_parts(*shape[:2]), shape.channels, phases, room
        kernels[which].launch(
            (shape.programs, shape.channels // shape.group),
            THREADS,
            room * kept * 2 * shape.group + _scratch(shape.group),
            (*tensors, *layout, *more),
            together=together,
        )


_kept_room = functools.cache(Shape.room)


def constants_of(group: int, threads: int = THREADS) -> dict[str, int]:
    """Return what the compiler is told of a kernel for so many channels of a program."""
    sizes = {"GROUP": group, "THREADS": threads, "AHEAD": AHEAD, "EACH": PROGRAMS_EACH}
    return {**sizes, "MOST_PARTS": MOST_PARTS}


def _group(channels: int) -> int:
    return next(group for group in GROUPS if channels % group == 0)


def _scratch(group: int) -> int:
    """Return the bytes a program needs to add up its sums."""
    return (THREADS // 32 + 1) * 2 * group * 4


@functools.cache
def _shared_bytes(device: int) -> int:
    """Return the shared memory that a program may have."""
    properties = device_properties(device)
    each = properties.shared_memory_per_multiprocessor // PROGRAMS_EACH - 1024
    return int(min(properties.shared_memory_per_block_optin, each)) // 16 * 16


@functools.cache
def _kernels(device: int, group: int) -> list[Kernel] | None:
    given = ["normalize", "take_back"], constants_of(group), _shared_bytes(device)
    instead = "torch's normalization is used"
    parts = ["eight_numbers.cu", "parts.cu"]
    return load_if_possible(device, "normalization.cu", *given, instead, parts=parts)
