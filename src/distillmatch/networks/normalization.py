"""Batch normalization whose running statistics can be left alone for one forward pass."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional


class BatchNorm(nn.Module):
    """Batch normalization over all dimensions but the second.

    In training it normalizes by the batch and, unless inside `frozen_statistics`, moves the running
    mean and variance a tenth of the way to the batch's; in evaluation it normalizes by the running
    ones. The switch is a plain attribute read while the step is traced or captured, so a captured
    step holds both kinds of forward and nothing is asked of the device.
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
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs normalized, scaled and shifted by channel."""
        by_batch_alone = self.training and not self.moves_statistics
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

    def extra_repr(self) -> str:
        """Describe the layer where its network is printed."""
        return f"{len(self.weight)}, momentum={self.momentum}, epsilon={self.epsilon}"


@contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Let training forwards normalize by their own batch without moving the running statistics.

    For strong views: their statistics are not those of the images met at test time.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, BatchNorm)]
    before = [layer.moves_statistics for layer in layers]
    for layer in layers:
        layer.moves_statistics = False
    try:
        yield
    finally:
        for layer, moved in zip(layers, before, strict=True):
            layer.moves_statistics = moved
