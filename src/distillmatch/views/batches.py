"""Batches while views are made: their memory layout, and pieces that fit the cache."""

from collections.abc import Iterator

import torch
from torch import Tensor

# On a CPU the floats of a piece stay in the second-level cache between two passes. On a GPU pieces
# only limit intermediate results to about two gigabytes.
_CPU_BYTES = 3 << 18
_GPU_BYTES = 3 << 27


def to_pixels(images: Tensor) -> Tensor:
    """Return (count, 3, side, side) images as contiguous (count, side, side, 3) pixels.

    Images in channels-last memory are not copied.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(
            "images must be uint8 of shape (count, 3, side, side), "
            f"not {images.dtype} of shape {tuple(images.shape)}"
        )
    if images.shape[2] != images.shape[3]:
        raise ValueError(f"images must be square, not {tuple(images.shape[2:])}")
    return images.permute(0, 2, 3, 1).contiguous()


def to_images(pixels: Tensor) -> Tensor:
    """Return (count, side, side, 3) pixels as (count, 3, side, side) images, channels-last."""
    return pixels.permute(0, 3, 1, 2)


def pieces(pixels: Tensor, start: int = 0, stop: int | None = None) -> Iterator[slice]:
    """Cut the images from `start` to `stop` into pieces that suit their device."""
    stop = len(pixels) if stop is None else stop
    budget = _CPU_BYTES if pixels.device.type == "cpu" else _GPU_BYTES
    count = max(1, budget // (4 * max(1, pixels[:1].numel())))
    for first in range(start, stop, count):
        yield slice(first, min(first + count, stop))
