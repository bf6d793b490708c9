"""Convolutions of 1×1 taps, as matrix products over the positions of channels-last maps.

A library converts the maps of a strided one to another layout and back, which takes several times
as long as the product: docs/performance.md.
"""

import torch
from torch import Tensor


def convolve(maps: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolve every `stride`-th row and column of the maps."""
    taken = maps[:, :, ::stride, ::stride]
    images, _, height, width = taken.shape
    made = _rows(taken) @ weight.flatten(1).t()
    return made.view(images, height, width, -1).permute(0, 3, 1, 2)


def take_back(given: Tensor, weight: Tensor, stride: int, onto: Tensor) -> None:
    """Add to `onto` the gradient of the maps, from that of the convolved ones."""
    matrix = weight.flatten(1)
    if stride == 1:
        onto.permute(0, 2, 3, 1).view(-1, onto.shape[1]).addmm_(_rows(given), matrix)
        return
    images, _, height, width = given.shape
    made = torch.mm(_rows(given), matrix).view(images, height, width, -1)
    onto[:, :, ::stride, ::stride] += made.permute(0, 3, 1, 2)


def weight_gradient(maps: Tensor, given: Tensor, stride: int) -> Tensor:
    """Return the gradient of the weights in float32, from that of the convolved maps."""
    taken = _rows(maps[:, :, ::stride, ::stride])
    return torch.mm(_rows(given).t(), taken, out_dtype=torch.float32)[:, :, None, None]


def _rows(maps: Tensor) -> Tensor:
    """Return the maps as a matrix of positions by channels."""
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])
