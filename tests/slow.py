"""Slow, obvious normalization of single groups of images."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from distillmatch.networks import StatisticsGroups


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
