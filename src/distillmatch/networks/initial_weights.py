"""Initial weights: how those of new layers, and of new class slots, are drawn."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from distillmatch.errors import ConfigError


def initialize(network: nn.Module, generator: torch.Generator | None = None) -> None:
    """Draw the weights of all convolutions and linear layers; set linear biases to zero.

    Convolutions: normal with variance 2 / (channels out · kernel area). Linear layers: uniform
    within ± 1 / √(features in). Normalization starts as the identity. Without a `generator` the
    numbers come from torch's global one.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(
                layer.weight, mode="fan_out", nonlinearity="relu", generator=generator
            )
        elif isinstance(layer, nn.Linear):
            draw_uniform(layer.weight, generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def draw_uniform(weight: Tensor, generator: torch.Generator | None) -> None:
    """Draw the weights of a linear layer within ± 1 / √(features in)."""
    bound = weight.shape[1] ** -0.5
    nn.init.uniform_(weight, -bound, bound, generator=generator)


def draw_normal(weight: Tensor, generator: torch.Generator | None) -> None:
    """Draw the weights of a linear layer with variance 2 / (features in)."""
    nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)


def enlarge(
    layer: nn.Linear,
    outputs: int,
    draw: Callable[[Tensor, torch.Generator | None], None],
    generator: torch.Generator | None,
) -> None:
    """Give a linear layer more outputs: the old rows stay, new ones are drawn, their bias zero."""
    added = outputs - layer.out_features
    if added < 0:
        raise ConfigError(
            f"a network of {layer.out_features} classes cannot be made one of {outputs}"
        )
    if added == 0:
        return
    # Drawn in float32 on the CPU, so that they are the same wherever the network is.
    rows = torch.empty(added, layer.in_features)
    draw(rows, generator)
    layer.weight = _longer(layer.weight, rows)
    if layer.bias is not None:
        layer.bias = _longer(layer.bias, torch.zeros(added))
    layer.out_features = outputs


def _longer(parameter: Tensor, rows: Tensor) -> nn.Parameter:
    values = torch.cat([parameter.detach(), rows.to(parameter)])
    return nn.Parameter(values, requires_grad=parameter.requires_grad)
