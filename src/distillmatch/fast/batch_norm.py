"""Batch normalization in training with ReLU and residual sum, by kernels that read maps once.

The statistics are known only when all maps have been read. The kernels keep the maps in shared
memory meanwhile, as far as they fit, and their thread blocks wait for each other. Groups of a batch
can have statistics of their own.
"""

import ctypes
import functools
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from distillmatch.concurrency import device_is_shared
from distillmatch.fast.compiler import Kernel, device_properties, load
from distillmatch.fast.convolution import are_maps
from distillmatch.fast.operators import Call, Draw, Operator

if TYPE_CHECKING:
    from distillmatch.networks.normalization import BatchNorm

MAX_GROUPS = 4
"""Groups with statistics of their own that a batch may have."""
THREADS = 512
AHEAD = 2
BLOCKS_EACH = 2
"""Thread blocks that a multiprocessor may have at a time."""
FEW_PASSES, MANY_PASSES = 4, 8
"""Rows that a thread has at least, where the maps have so many; and from where on two blocks a
multiprocessor are faster than one."""
SUM, CHANGE = 1, 2
"""The phases of a kernel."""
CHANNELS = (32, 16)
"""Channels that a thread block may have."""
MIN_IMAGES = 2
"""A single one is left to torch."""

_counters: "WeakKeyDictionary[BatchNorm, dict[tuple[torch.device, int], Tensor]]"
_counters = WeakKeyDictionary()


def takes(channels: int, images: int, device: torch.device) -> bool:
    """Return whether the kernels take channels-last maps in bfloat16 on a CUDA device."""
    if channels % CHANNELS[-1] or images < MIN_IMAGES:
        return False
    processors = device_properties(device).multi_processor_count
    enough = processors >= MAX_GROUPS * channels // _block_channels(channels)
    return enough and _kernels(device.index, _block_channels(channels)) is not None


def counters_of(norm: "BatchNorm", device: torch.device) -> Tensor:
    """Return the counters of a layer on the current stream, by which thread blocks wait.

    They are zeros before and after every launch. Launches of one stream follow each other; those of
    two may run at once, of the same layer too: a frozen network that a step asks is also asked,
    beside the step, about the images of the next epoch. With shared counters some blocks would go
    on too early and others wait for ever. A graph has the counters of the stream it was captured
    on, and steps are captured on another one than scores.
    """
    if device.type != "cuda":
        return torch.empty(0, dtype=torch.int32, device=device)
    of_streams = _counters.setdefault(norm, {})
    key = device, torch.cuda.current_stream(device).cuda_stream
    if key not in of_streams:
        count = 2 * max(1, norm.weight.shape[0] // CHANNELS[-1])
        of_streams[key] = torch.zeros(count, dtype=torch.int32, device=device)
    return of_streams[key]


class Groups(ctypes.Structure):
    """Where each group's rows end, and its thread blocks; a group that is missing is empty."""

    _fields_ = (("ends", ctypes.c_int * MAX_GROUPS), ("blocks", ctypes.c_int * MAX_GROUPS))


@functools.cache
def kernel_groups(sizes: tuple[int, ...], blocks: tuple[int, ...]) -> Groups:
    """Describe groups of these sizes, which have so many thread blocks each."""
    missing = [0] * (MAX_GROUPS - len(sizes))
    return Groups(*(tuple(accumulate((*each, *missing))) for each in (sizes, blocks)))


def share_blocks(blocks: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Share thread blocks out to groups by their sizes, at least one to each."""
    shares: list[int] = []
    for number, end in enumerate(accumulate(sizes), 1):
        given, left = sum(shares), len(sizes) - number
        until = round(blocks * end / sum(sizes))
        shares.append(min(max(until, given + 1), blocks - left) - given)
    return tuple(shares)


class Shape(NamedTuple):
    """How the thread blocks of a launch share a batch of maps."""

    sizes: tuple[int, ...]
    """Rows of each group."""
    blocks_of: tuple[int, ...]
    """Thread blocks of each group."""
    channels: int
    block_channels: int

    @staticmethod
    def of(maps: Tensor, sizes: Sequence[int]) -> "Shape":
        """Share out maps whose groups have so many images."""
        return _shared_out(maps.shape, tuple(sizes), maps.device)

    @property
    def blocks(self) -> int:
        """How many thread blocks there are for the same channels."""
        return sum(self.blocks_of)

    @property
    def sums(self) -> tuple[int, int]:
        """The numbers that the thread blocks leave for each other."""
        return self.blocks, 2 * self.channels

    def is_cooperative(self, device: torch.device) -> bool:
        """Return whether one launch does both phases.

        Such launches overlap with those of other runs only where they do not fill the device.
        """
        processors = device_properties(device).multi_processor_count
        return (
            not device_is_shared()
            or self.blocks * (self.channels // self.block_channels) <= processors
        )

    def room(self, device: torch.device, kept: int) -> int:
        """Return how many rows of `kept` tensors a thread block keeps in shared memory."""
        most = max(-(-rows // blocks) for rows, blocks in zip(*self[:2], strict=True))
        free = _shared_bytes(device.index) - _scratch(self.block_channels)
        return min(most, free // (kept * 2 * self.block_channels))


@functools.cache
def _shared_out(shape: torch.Size, sizes: tuple[int, ...], device: torch.device) -> Shape:
    images, channels, height, width = shape
    rows = images * height * width
    block_channels = _block_channels(channels)
    processors = device_properties(device).multi_processor_count
    slices, at_once = channels // block_channels, THREADS // (block_channels // 8)
    many = rows * slices >= MANY_PASSES * at_once * processors
    most = (BLOCKS_EACH if many else 1) * processors // slices
    blocks = max(len(sizes), min(most, rows // (FEW_PASSES * at_once)))
    of_groups = tuple(size * height * width for size in sizes)
    return Shape(of_groups, share_blocks(blocks, of_groups), channels, block_channels)


def _forward(maps: Tensor, shortcut: Tensor | None, *more: Any) -> Any:
    *layer, counters, sizes, updating, momentum, epsilon = more
    if not (_fits(maps, layer[0], sizes) and are_maps(shortcut)):
        return NotImplemented
    shape, device = Shape.of(maps, sizes), maps.device
    total = None if shortcut is None else torch.empty_like(maps)
    activated = torch.empty_like(maps)
    coefficients = torch.empty(len(sizes), 4, shape.channels, device=device)
    partial = torch.empty(shape.sums, device=device)
    written = maps if total is None else total, activated
    tensors = maps, shortcut, *written, *layer, coefficients, partial, counters
    _launch(0, shape, tensors, 1, (updating, momentum, epsilon))
    return activated, maps.new_empty(0) if total is None else total, coefficients


def _plain_forward(
    maps: Tensor,
    shortcut: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    counters: Tensor,
    sizes: Sequence[int],
    updating: int,
    momentum: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    total = maps if shortcut is None else maps + shortcut
    activated, coefficients = [], []
    for number, group in enumerate(torch.split(total.to(weight.dtype), list(sizes))):
        variance, mean = torch.var_mean(group, (0, 2, 3), correction=0)
        inverse = (variance + epsilon).rsqrt()
        scale = weight * inverse
        shift = bias - mean * scale
        activated.append((group * _wide(scale) + _wide(shift)).relu())
        coefficients.append(torch.stack([scale, shift, mean, inverse]))
        if number < updating:
            count = group.numel() // group.shape[1]
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(variance * (count / max(count - 1, 1)), momentum)
    kept = maps.new_empty(0) if shortcut is None else total
    return torch.cat(activated).to(maps), kept, torch.stack(coefficients)


def _backward(gradient: Tensor, total_gradient: Tensor | None, total: Tensor, *more: Any) -> Any:
    coefficients, counters, sizes = more
    if not (_fits(total, coefficients, sizes) and are_maps(gradient, total_gradient)):
        return NotImplemented
    shape, device = Shape.of(total, sizes), gradient.device
    of_maps = torch.empty_like(total)
    of_weight = torch.empty(shape.channels, device=device)
    of_bias = torch.empty(shape.channels, device=device)
    partial = torch.empty(shape.sums, device=device)
    written = of_maps, coefficients, of_weight, of_bias, partial, counters
    _launch(1, shape, (gradient, total_gradient, total, *written), 2, ())
    return of_maps, of_weight, of_bias


def _plain_backward(
    gradient: Tensor,
    total_gradient: Tensor | None,
    total: Tensor,
    coefficients: Tensor,
    counters: Tensor,
    sizes: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    of_maps = []
    of_weight, of_bias = torch.zeros_like(coefficients[0, 0]), torch.zeros_like(coefficients[0, 0])
    dtype, cuts = coefficients.dtype, list(sizes)
    groups = zip(torch.split(total, cuts), torch.split(gradient, cuts), strict=True)
    for (some, given), (scale, shift, mean, inverse) in zip(groups, coefficients, strict=True):
        maps = some.to(dtype)
        normal = (maps - _wide(mean)) * _wide(inverse)
        passed = given.to(dtype) * (maps * _wide(scale) + _wide(shift) > 0)
        along, level = (passed * normal).mean((0, 2, 3)), passed.mean((0, 2, 3))
        of_maps.append((passed - _wide(level) - normal * _wide(along)) * _wide(scale))
        of_weight = of_weight + (passed * normal).sum((0, 2, 3))
        of_bias = of_bias + passed.sum((0, 2, 3))
    result = torch.cat(of_maps)
    if total_gradient is not None:
        result = result + total_gradient
    return result.to(total), of_weight, of_bias


def _wide(numbers: Tensor) -> Tensor:
    return numbers[:, None, None]


def _fits(maps: Tensor, numbers: Tensor, sizes: Sequence[int]) -> bool:
    images, channels, _, _ = maps.shape
    return (
        are_maps(maps)
        and numbers.dtype == torch.float32
        and len(sizes) <= MAX_GROUPS
        and min(sizes) > 0
        and sum(sizes) == images
        and takes(channels, images, maps.device)
    )


def _launch(
    which: int, shape: Shape, tensors: Sequence[Tensor | None], kept: int, more: tuple[float, ...]
) -> None:
    """Launch a kernel that may keep `kept` numbers for each one of its maps: once, or by phase."""
    maps = tensors[0]
    assert maps is not None
    kernels = _kernels(maps.get_device(), shape.block_channels)
    assert kernels is not None
    cooperative = shape.is_cooperative(maps.device)
    room = _room(shape, maps.device, kept) if cooperative else 0
    for phases in (SUM | CHANGE,) if cooperative else (SUM, CHANGE):
        layout = kernel_groups(*shape[:2]), shape.channels, phases, room
        kernels[which].launch(
            (shape.blocks, shape.channels // shape.block_channels),
            THREADS,
            room * kept * 2 * shape.block_channels + _scratch(shape.block_channels),
            (*tensors, *layout, *more),
            cooperative=cooperative,
        )


_room = functools.cache(Shape.room)


def constants_of(block_channels: int, threads: int = THREADS) -> dict[str, int]:
    """Return the constants of the source for so many channels of a thread block."""
    sizes = {"THREADS": threads, "AHEAD": AHEAD, "BLOCKS_EACH": BLOCKS_EACH}
    return {**sizes, "BLOCK_CHANNELS": block_channels, "MAX_GROUPS": MAX_GROUPS}


def _block_channels(channels: int) -> int:
    return next(count for count in CHANNELS if channels % count == 0)


def _scratch(block_channels: int) -> int:
    """Return the bytes a thread block needs to add up its sums."""
    return (THREADS // 32 + 1) * 2 * block_channels * 4


@functools.cache
def _shared_bytes(device: int) -> int:
    """Return the shared memory that a thread block may have."""
    properties = device_properties(device)
    each = properties.shared_memory_per_multiprocessor // BLOCKS_EACH - 1024
    return int(min(properties.shared_memory_per_block_optin, each)) // 16 * 16


@functools.cache
def _kernels(device: int, block_channels: int) -> list[Kernel] | None:
    names = ["normalize", "normalize_backward"]
    constants = constants_of(block_channels)
    return load(device, ["batch_norm.cu"], names, constants, _shared_bytes(device))


def _forward_examples(draw: Draw) -> Iterable[Call]:
    for shortcut, sizes, updating in ((True, (4, 2), 1), (False, (3, 1, 2), 3)):
        layer = draw.numbers(32), draw.numbers(32), draw.numbers(32), draw.numbers(32).square()
        maps, added = draw.maps(6, 32, 8, 8) + 1, draw.maps(6, 32, 8, 8) if shortcut else None
        counters = torch.zeros(4, dtype=torch.int32, device=draw.device)
        yield maps, added, *layer, counters, list(sizes), updating, 0.1, 1e-5


def _backward_examples(draw: Draw) -> Iterable[Call]:
    for call in _forward_examples(draw):
        maps, shortcut, *_, counters, sizes, _, _, _ = call
        _, total, coefficients = _plain_forward(*call)
        given = draw.maps(*maps.shape), None if shortcut is None else draw.maps(*maps.shape)
        yield *given, maps if shortcut is None else total, coefficients, counters, sizes


batch_norm_relu = Operator(
    "batch_norm_relu(Tensor maps, Tensor? shortcut, Tensor weight, Tensor bias, "
    "Tensor(a!) running_mean, Tensor(b!) running_var, Tensor(c!) counters, int[] sizes, "
    "int updating, float momentum, float epsilon) -> (Tensor, Tensor, Tensor)",
    _plain_forward,
    _forward,
    _forward_examples,
)
"""Return the ReLU of the normalized sum of maps and shortcut; the sum, empty without a shortcut;
and scale, shift, mean and inverse deviation of each group. The first groups update the running
statistics."""

batch_norm_relu_backward = Operator(
    "batch_norm_relu_backward(Tensor gradient, Tensor? total_gradient, Tensor total, "
    "Tensor coefficients, Tensor(a!) counters, int[] sizes) -> (Tensor, Tensor, Tensor)",
    _plain_backward,
    _backward,
    _backward_examples,
)
"""Return the gradients of the sum, to which one that it has from elsewhere is added, and of weight
and bias."""
