"""Batch normalization with ReLU, whose statistics can be kept apart for groups of a batch."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class StatisticsGroups(NamedTuple):
    """Groups of a batch, in their order, each normalized by its own statistics."""

    sizes: tuple[int, ...]
    """Images of each group."""
    updating: int
    """How many of the first groups update the running statistics, one after the other."""


class BatchNorm(nn.Module):
    """Batch normalization over all dimensions but the second.

    In training it normalizes by the batch and updates the running mean and variance by a tenth; in
    evaluation it normalizes by the running ones. Inside `separate_statistics` groups of a batch are
    normalized each by its own.
    """

    weight: nn.Parameter
    bias: nn.Parameter
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, momentum: float = 0.1, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.momentum = momentum
        self.epsilon = epsilon
        self.groups: StatisticsGroups | None = None
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs normalized, scaled and shifted by channel."""
        if not self.training or self.groups is None:
            return self._normalized(inputs, updates=True)
        sizes, updating = self.groups
        groups = enumerate(torch.split(inputs, list(sizes)))
        return torch.cat([self._normalized(one, number < updating) for number, one in groups])

    def activate(self, maps: Tensor) -> Tensor:
        """Return the ReLU of the normalized maps."""
        return functional.relu(self(maps))

    def add_and_activate(self, maps: Tensor, shortcut: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of maps and shortcut, and the ReLU of the normalized sum."""
        summed = maps + shortcut
        return summed, functional.relu(self(summed))

    def _normalized(self, inputs: Tensor, updates: bool) -> Tensor:
        by_batch_alone = self.training and not updates
        return functional.batch_norm(
            inputs,
            None if by_batch_alone else self.running_mean,
            None if by_batch_alone else self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum,
            self.epsilon,
        )


@contextmanager
def separate_statistics(
    network: nn.Module, sizes: Sequence[int], updating: int = 1
) -> Iterator[None]:
    """Let one forward replace several, one for each group of the batch, of these sizes.

    Every group is normalized by its own statistics; the first `updating` of them update the running
    ones, in their order. Strong views, say, do not: their statistics are not those of test images.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, BatchNorm)]
    for layer in layers:
        layer.groups = StatisticsGroups(tuple(sizes), updating)
    try:
        yield
    finally:
        for layer in layers:
            layer.groups = None


@contextmanager
def by_batch_statistics(networks: Sequence[nn.Module], sizes: Sequence[int]) -> Iterator[None]:
    """Let frozen networks normalize by the images they are given, in batches of these sizes.

    They are in training mode meanwhile, but nothing about them changes.
    """
    with ExitStack() as unchanged:
        for network in networks:
            unchanged.enter_context(separate_statistics(network, sizes, updating=0))
            unchanged.callback(network.eval)
            network.train()
        yield
