"""Batch normalization with ReLU, whose statistics can be kept apart for parts of a batch."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Parts(NamedTuple):
    """Parts of a batch, in their order, each of which is normalized by its own statistics."""

    sizes: tuple[int, ...]
    """Images of each."""
    moving: int
    """How many of the first move the running statistics, one after the other."""


class BatchNorm(nn.Module):
    """Batch normalization over all dimensions but the second.

    In training it normalizes by the batch and, unless inside `frozen_statistics`, moves the running
    mean and variance a tenth of the way to the batch's; in evaluation it normalizes by the running
    ones. Inside `separate_statistics` parts of a batch are normalized each by their own. These
    switches are plain attributes read while the step is captured, so nothing is asked of the
    device.
    """

    weight: nn.Parameter
    bias: nn.Parameter
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, momentum: float = 0.1, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.momentum = momentum
        self.epsilon = epsilon
        self.moves_statistics = True
        self.parts: Parts | None = None
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs normalized, scaled and shifted by channel."""
        if not self.training or self.parts is None:
            return self._normalized(inputs, self.moves_statistics)
        moving = self.parts.moving if self.moves_statistics else 0
        parts = torch.split(inputs, list(self.parts.sizes))
        return torch.cat([self._normalized(one, at < moving) for at, one in enumerate(parts)])

    def activate(self, maps: Tensor) -> Tensor:
        """Return the ReLU of the normalized maps."""
        return functional.relu(self(maps))

    def add_and_activate(self, maps: Tensor, shortcut: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of maps and shortcut, and the ReLU of the normalized sum."""
        summed = maps + shortcut
        return summed, functional.relu(self(summed))

    def _normalized(self, inputs: Tensor, moves: bool) -> Tensor:
        by_batch_alone = self.training and not moves
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

    def is_plain(self, device: torch.device) -> bool:
        """Tell whether all numbers of the layer are as our kernels read them, on a device."""
        return {"weight", "bias"} <= self._parameters.keys() and all(
            one.dtype == torch.float32 and one.device == device and one.is_contiguous()
            for one in self.tensors
        )

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weight, bias, running mean and variance, of a layer that has them itself.

        They are taken from where torch keeps them: its way there by name is as long as a launch.
        """
        parameters: Any = self._parameters
        buffers: Any = self._buffers
        own = parameters["weight"], parameters["bias"]
        return *own, buffers["running_mean"], buffers["running_var"]

    def extra_repr(self) -> str:
        """Describe the layer where its network is printed."""
        return f"{len(self.weight)}, momentum={self.momentum}, epsilon={self.epsilon}"


@contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Let training forwards normalize by their own batch without moving the running statistics.

    For strong views: their statistics are not those of the images met at test time.
    """
    layers = _attributes(network)
    before = [layer["moves_statistics"] for layer in layers]
    for layer in layers:
        layer["moves_statistics"] = False
    try:
        yield
    finally:
        for layer, moved in zip(layers, before, strict=True):
            layer["moves_statistics"] = moved


@contextmanager
def separate_statistics(
    network: nn.Module, sizes: Sequence[int], moving: int = 1
) -> Iterator[None]:
    """Let one forward do for several: each part of a batch, of so many images, is one of its own.

    Every part is normalized by its own statistics; the first `moving` of them move the running
    ones, in their order. So weak and strong views share a forward that is as good as one for the
    weak and, inside `frozen_statistics`, another for the strong.
    """
    layers = _attributes(network)
    for layer in layers:
        layer["parts"] = Parts(tuple(sizes), moving)
    try:
        yield
    finally:
        for layer in layers:
            layer["parts"] = None


@contextmanager
def by_batch_statistics(networks: Sequence[nn.Module], sizes: Sequence[int]) -> Iterator[None]:
    """Let frozen networks normalize by the images they are asked about, in batches of these sizes.

    They are put into training mode meanwhile, in which nothing about them changes.
    """
    with ExitStack() as unchanged:
        for network in networks:
            unchanged.enter_context(separate_statistics(network, sizes, moving=0))
            unchanged.callback(network.eval)
            network.train()
        yield


def _attributes(network: nn.Module) -> list[dict[str, Any]]:
    """Return those of all normalizations, where a switch is set.

    To assign it would let each module look for a parameter or buffer of that name first.
    """
    return [vars(layer) for layer in network.modules() if isinstance(layer, BatchNorm)]
