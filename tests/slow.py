"""Slow, obvious normalization of single groups of images."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from distillmatch.networks import Parts


def activated_by_parts(maps: Tensor, parts: Parts | None, layer: Sequence[Tensor]) -> Tensor:
    """Return the ReLU of maps that torch normalizes part by part.

    The layer is its weight, bias, running mean and variance; the latter two are moved.
    """
    sizes, moving = parts or Parts((len(maps),), 1)
    weight, bias, *running = layer
    made = []
    for number, part in enumerate(torch.split(maps, list(sizes))):
        mean, variance = running if number < moving else (None, None)
        made.append(functional.batch_norm(part, mean, variance, weight, bias, training=True))
    return functional.relu(torch.cat(made))
