"""Batch normalization by its operators, for a layer."""

from typing import NamedTuple

from torch import Tensor

from distillmatch.fast.batch_norm import batch_norm_relu, batch_norm_relu_backward, counters_of
from distillmatch.networks import BatchNorm, StatisticsGroups


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
