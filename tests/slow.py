"""Slow, obvious arithmetic on plain numbers and on single groups of images."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from distillmatch.networks import Parts

Row = list[float]


def softmax(row: Row, temperature: float = 1.0) -> Row:
    top = max(row)
    exponents = [math.exp((v - top) / temperature) for v in row]
    return [e / sum(exponents) for e in exponents]


def divergence(p: Row, q: Row) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


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
