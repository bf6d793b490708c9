"""The paper's losses once more, plain and slow: from the specification, not from our parts.

Networks are functions of their weights with batch normalization written out; losses are loops over
images and classes on Python's numbers. Nothing here calls a loss, a layer or a method of ours.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

Weights = dict[str, Tensor]
Row = list[float]
Rows = list[Row]


def normalized(inputs: Tensor, weights: Weights, name: str, by_batch: bool) -> Tensor:
    """Normalize by the mean and variance of the given images, or by the running ones."""
    over = [0, *range(2, inputs.ndim)]
    shape = [1, -1, *[1] * (inputs.ndim - 2)]
    if by_batch:
        mean = inputs.mean(over)
        variance = ((inputs - mean.view(shape)) ** 2).mean(over)
    else:
        mean, variance = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
    scaled = (inputs - mean.view(shape)) / torch.sqrt(variance.view(shape) + 1e-5)
    return scaled * weights[f"{name}.weight"].view(shape) + weights[f"{name}.bias"].view(shape)


def features(images: Tensor, weights: Weights, by_batch: bool) -> Tensor:
    """WRN-10-1, pre-activation: a convolution, three blocks, a normalization, the maps' means."""
    maps = functional.conv2d(images, weights["backbone.first.weight"], padding=1)
    for block in range(3):
        name, stride = f"backbone.blocks.{block}", 1 if block == 0 else 2
        active = functional.relu(normalized(maps, weights, f"{name}.norm1", by_batch))
        shortcut = maps
        if f"{name}.shortcut.weight" in weights:
            shortcut = functional.conv2d(active, weights[f"{name}.shortcut.weight"], stride=stride)
        inner = functional.conv2d(active, weights[f"{name}.conv1.weight"], stride=stride, padding=1)
        inner = functional.relu(normalized(inner, weights, f"{name}.norm2", by_batch))
        maps = functional.conv2d(inner, weights[f"{name}.conv2.weight"], padding=1) + shortcut
    maps = functional.relu(normalized(maps, weights, "backbone.last_norm", by_batch))
    return maps.mean((2, 3))


def logits(images: Tensor, weights: Weights, by_batch: bool = True) -> Tensor:
    """A linear head on the features."""
    return features(images, weights, by_batch) @ weights["head.weight"].T + weights["head.bias"]


def detector(
    images: Tensor, weights: Weights, by_batch: bool = True, scaled: bool = True
) -> tuple[Tensor, Tensor]:
    """DeConf: similarities h and logits f = h / g."""
    z = features(images, weights, by_batch)
    w = weights["head.classes.weight"]
    h = (z / z.norm(dim=1, keepdim=True)) @ (w / w.norm(dim=1, keepdim=True)).T
    if scaled:
        scale = z @ weights["head.scale.weight"].T
        h = h * torch.exp(normalized(scale, weights, "head.scale_norm", by_batch))
    divisor = z @ weights["head.divisor.weight"].T + weights["head.divisor.bias"]
    g = torch.sigmoid(normalized(divisor, weights, "head.divisor_norm", by_batch))
    return h, h / g


def scores(
    images: Tensor, weights: Weights, past: int, epsilon: float, by_batch: bool, scaled: bool
) -> Row:
    """The largest similarity, of images moved along the sign of its gradient."""
    moved = images.clone().requires_grad_(True)
    best = detector(moved, weights, by_batch, scaled)[0][:, :past].max(dim=1).values
    (gradient,) = torch.autograd.grad(best.sum(), moved)
    with torch.no_grad():
        there = images + epsilon * gradient.sign()
        found: Row = detector(there, weights, by_batch, scaled)[0][:, :past].max(1).values.tolist()
    return found


def softmax(row: Row, temperature: float = 1.0) -> Row:
    top = max(row)
    exponents = [math.exp((v - top) / temperature) for v in row]
    return [e / sum(exponents) for e in exponents]


def divergence(p: Row, q: Row) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def cross_entropy(row: Row, label: int) -> float:
    return -math.log(softmax(row)[label])


def cooled(teacher: Rows, student: Rows, start: int, end: int) -> float:
    """The mean divergence over images, among some classes at temperature 2."""
    pairs = zip(teacher, student, strict=True)
    return sum(
        divergence(softmax(t[start:end], 2.0), softmax(s[start:end], 2.0)) for t, s in pairs
    ) / len(teacher)


def per_task(teacher: Rows, student: Rows, sizes: Sequence[int]) -> float:
    """Eq. 1 over the past tasks, each weighted by its share of the classes seen."""
    seen, start, total = sum(sizes), 0, 0.0
    for size in sizes[:-1]:
        total += size / seen * cooled(teacher, student, start, start + size)
        start += size
    return total


def consistency(weak: Rows, strong: Rows, threshold: float) -> float:
    """Eq. 4."""
    total = 0.0
    for weak_row, strong_row in zip(weak, strong, strict=True):
        guess = softmax(weak_row)
        if max(guess) >= threshold:
            total += cross_entropy(strong_row, guess.index(max(guess)))
    return total / len(weak)


def ensemble(past_row: Row, new_row: Row) -> Row:
    """GD's target Q of one image, from logits over the past and over the new classes."""
    p, c = softmax(past_row), softmax(new_row)
    s, m = len(p) + len(c), len(c)
    largest = max(p)
    others = [v if v == largest else v * (s - m - 1) / (s - 1) for v in p]
    return others + [(1 - largest) * m / (s - 1) * v for v in c]
