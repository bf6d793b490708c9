"""Slow, obvious arithmetic on plain numbers, and small batches and networks to try it on."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from distillmatch.methods import Batch, TaskInfo
from distillmatch.networks import Parts, build_network

Row = list[float]
Rows = list[Row]
SIZES = (2, 3, 2)
TASK = TaskInfo(number=2, sizes=SIZES, last=False, coreset=False)


def builder(classes: int = 7) -> Callable[..., nn.Module]:
    def build(name: str, similarity: str | None = None) -> nn.Module:
        generator = torch.Generator().manual_seed(len(name))
        head: Any = similarity or "linear"
        network: nn.Module = build_network("wrn-10-1", classes, head, generator)
        return network.double().eval()

    return build


def random_batch(seed: int, labeled: int = 5, unlabeled: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def images(count: int) -> Tensor:
        return torch.randn(count, 3, 8, 8, generator=generator, dtype=torch.float64)

    def logits(count: int) -> Tensor:
        return 3 * torch.randn(count, 7, generator=generator, dtype=torch.float64)

    names = ("past", "teacher", "detector logits")
    of_unlabeled = {name: logits(unlabeled) for name in names}
    of_unlabeled["gate"] = torch.rand(unlabeled, generator=generator, dtype=torch.float64)
    return Batch(
        images=images(labeled),
        labels=torch.randint(5, 7, (labeled,), generator=generator),
        unlabeled=images(unlabeled),
        strong=images(unlabeled),
        of_images={name: logits(labeled) for name in names},
        of_unlabeled=of_unlabeled,
    )


def softmax(row: Row, temperature: float = 1.0) -> Row:
    top = max(row)
    exponents = [math.exp((v - top) / temperature) for v in row]
    return [e / sum(exponents) for e in exponents]


def cooled(row: Row, temperature: float = 2.0) -> Row:
    return softmax(row, temperature)


def divergence(p: Row, q: Row) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def mean_divergence(
    teacher: Rows, student: Rows, start: int, end: int, temperature: float = 2.0
) -> float:
    """Over images, between two models' cooled outputs for the classes from `start` to `end`."""
    total = 0.0
    for one, other in zip(teacher, student, strict=True):
        total += divergence(
            cooled(one[start:end], temperature), cooled(other[start:end], temperature)
        )
    return total / len(teacher)


def slow_supervised(batch: Batch, weights: Row, labeled: Rows) -> float:
    labels: list[int] = batch.labels.tolist()
    return sum(
        -weights[y] * math.log(softmax(row)[y]) for row, y in zip(labeled, labels, strict=True)
    )


def slow_consistency(weak: Rows, strong: Rows, threshold: float) -> float:
    """Eq. 4 by loops over images."""
    total = 0.0
    for weak_row, strong_row in zip(weak, strong, strict=True):
        guess = softmax(weak_row)
        if max(guess) >= threshold:
            total -= math.log(softmax(strong_row)[guess.index(max(guess))])
    return total / len(weak)


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
