"""Batch normalization by its operators and by torch, and backbones whose layers all differ."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from distillmatch.fast.batch_norm import batch_norm_relu, batch_norm_relu_backward, counters_of
from distillmatch.networks import BatchNorm, StatisticsGroups, WideResNet


class Normalized(NamedTuple):
    activated: Tensor
    total: Tensor
    coefficients: Tensor


def normalize(maps: Tensor, shortcut: Tensor | None, norm: BatchNorm) -> Normalized:
    layer = norm.weight, norm.bias, norm.running_mean, norm.running_var
    sizes, updating = norm.groups or StatisticsGroups((len(maps),), 1)
    numbers = updating, norm.momentum, norm.epsilon
    given = maps, shortcut, *(one.detach() for one in layer), counters_of(norm, maps.device)
    activated, total, coefficients = batch_norm_relu(*given, sizes, *numbers)
    return Normalized(activated, maps if shortcut is None else total, coefficients)


def normalize_backward(
    gradient: Tensor, total_gradient: Tensor | None, made: Normalized, norm: BatchNorm
) -> list[Tensor]:
    sizes, _ = norm.groups or StatisticsGroups((len(gradient),), 1)
    given = gradient, total_gradient, made.total, made.coefficients
    return list(batch_norm_relu_backward(*given, counters_of(norm, gradient.device), sizes))


def activated_by_groups(
    maps: Tensor, groups: StatisticsGroups | None, layer: Sequence[Tensor]
) -> Tensor:
    """Return the ReLU of maps that torch normalizes group by group.

    The layer is its weight, bias, running mean and variance; the latter two are updated.
    """
    sizes, updating = groups or StatisticsGroups((len(maps),), 1)
    weight, bias, *running = layer
    made = []
    for number, group in enumerate(torch.split(maps, list(sizes))):
        mean, variance = running if number < updating else (None, None)
        made.append(functional.batch_norm(group, mean, variance, weight, bias, training=True))
    return functional.relu(torch.cat(made))


def drawn_backbone(depth: int, width: int) -> WideResNet:
    generator = torch.Generator().manual_seed(1)
    backbone = WideResNet(depth, width, generator=generator)
    for layer in backbone.modules():
        if isinstance(layer, BatchNorm):
            with torch.no_grad():
                layer.weight.normal_(1, 0.3, generator=generator)
                layer.bias.normal_(0, 0.2, generator=generator)
                layer.running_mean.normal_(0, 0.2, generator=generator)
                layer.running_var.uniform_(0.5, 1.5, generator=generator)
    return backbone


def frozen_backbone(depth: int, width: int) -> WideResNet:
    """Make a backbone in evaluation, none of whose parameters learn."""
    return drawn_backbone(depth, width).eval().requires_grad_(False)
