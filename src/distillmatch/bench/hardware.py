"""What a GPU can do at best, and the time below which no step can come with what it has to do."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from distillmatch.engine import Placement


@dataclass(frozen=True)
class Floor:
    """The arithmetic and memory traffic of a step, and the rates measured on the device.

    The traffic counted is the least that a network of separate convolutions has: each reads its
    input and writes its output once in the forward pass and in each of the two backward ones.
    """

    operations: float
    bytes: float
    operations_per_second: float
    bytes_per_second: float

    @property
    def milliseconds(self) -> float:
        """The time that arithmetic and traffic take one after the other."""
        arithmetic = self.operations / self.operations_per_second
        return 1000 * (arithmetic + self.bytes / self.bytes_per_second)


def floor_of(placement: Placement, network: nn.Module, step: Callable[[], Any]) -> Floor | None:
    """Count what the convolutions of one step do, by taking it; without a GPU, nothing."""
    if placement.device.type != "cuda":
        return None
    operations = moved = 0

    def count(layer: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        nonlocal operations, moved
        assert isinstance(layer, nn.Conv2d)
        # Forward, gradient of the input, gradient of the weights: three products of the same size.
        operations += 3 * 2 * made.numel() * layer.weight[0].numel()
        moved += 3 * (given[0].numel() + made.numel()) * placement.dtype.itemsize

    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    hooks = [layer.register_forward_hook(count) for layer in convolutions]
    try:
        step()
    finally:
        for hook in hooks:
            hook.remove()
    return Floor(float(operations), float(moved), matrix_rate(placement), copy_rate(placement))


def copy_rate(placement: Placement) -> float:
    """Return the bytes a second that a large copy on the GPU reads and writes."""
    source = torch.randint(256, (2**30,), dtype=torch.uint8, device=placement.device)
    target = torch.empty_like(source)
    return 2 * len(source) / mean_seconds(placement.wait, lambda: target.copy_(source), 0.3)


def matrix_rate(placement: Placement) -> float:
    """Return the operations a second of a large matrix product on the GPU."""
    side = 8192
    factor = torch.randn(side, side, dtype=placement.dtype, device=placement.device)
    return 2 * side**3 / mean_seconds(placement.wait, lambda: factor @ factor, 0.3)


def mean_seconds(wait: Callable[[], None], work: Callable[[], Any], seconds: float) -> float:
    """Return the mean seconds of some work until it is done, for which one has to `wait`."""
    started, count = time.perf_counter(), 0
    while count < 2 or time.perf_counter() - started < seconds:
        work()
        wait()
        count += 1
    return (time.perf_counter() - started) / count
