"""Normalization by the mean and standard deviation of the training images."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distillmatch.views.batches import pieces, to_images, to_pixels

Channels = tuple[float, float, float]
_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of the red, green and blue values, black being 0 and white 1."""

    mean: Channels
    std: Channels

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(list(values)) != 3 or not np.isfinite(values).all():
                raise ValueError(f"{name} must be three finite numbers, not {values}")
        if min(self.std) <= 0:
            raise ValueError(f"std must be above zero in every channel, not {self.std}")

    @classmethod
    def of(cls, images: NDArray[np.uint8]) -> Self:
        """Measure images of shape (count, side, side, 3) in pieces, so that they may stay on disk.

        The standard deviation of a constant channel is taken as 1.
        """
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or not images.size:
            raise ValueError(
                "images must be uint8 of shape (count, side, side, 3) with at least one image, "
                f"not {images.dtype} of shape {images.shape}"
            )
        # Counts of the 256 values are exact until the last division.
        counts = np.zeros((3, 256), dtype=np.int64)
        for chunk in _pieces(images):
            for channel in range(3):
                counts[channel] += np.bincount(chunk[..., channel].ravel(), minlength=256)
        values = np.arange(256, dtype=np.float64) / 255
        total = counts[0].sum()
        mean = counts @ values / total
        variance = (counts * (values - mean[:, None]) ** 2).sum(axis=1) / total
        std = np.where(variance > 0, np.sqrt(variance), 1.0)
        return cls(_channels(mean), _channels(std))

    def scales_and_shifts(self) -> tuple[list[float], list[float]]:
        """Return the factor and the summand of a value from 0 to 255, by channel."""
        pairs = list(zip(self.mean, self.std, strict=True))
        return [1 / (255 * std) for _, std in pairs], [-mean / std for mean, std in pairs]


class Normalizer:
    """A normalization prepared for images of one size on one device."""

    def __init__(self, normalization: Normalization, pixels: Tensor) -> None:
        """Prepare for pixels like these, (count, side, side, 3)."""
        scales, shifts = normalization.scales_and_shifts()
        self._scale = _along_image(scales, pixels)
        self._shift = _along_image(shifts, pixels)

    def write(self, pixels: Tensor, out: Tensor) -> None:
        """Write `(pixels / 255 - mean) / std` into `out`."""
        target = out.view(len(out), -1)
        values = (
            target if out.dtype == torch.float32 else torch.empty_like(target, dtype=torch.float32)
        )
        values.copy_(pixels.view(len(pixels), -1)).mul_(self._scale).add_(self._shift)
        if values is not target:
            target.copy_(values)


def plain_views(
    images: Tensor, normalization: Normalization, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the uint8 images normalized and otherwise unchanged, channels-last: for evaluation."""
    pixels = to_pixels(images)
    views = torch.empty(pixels.shape, dtype=dtype, device=pixels.device)
    normalizer = Normalizer(normalization, pixels)
    for piece in pieces(pixels):
        normalizer.write(pixels[piece], views[piece])
    return to_images(views)


def _pieces(images: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    count = max(1, _CHUNK_BYTES // int(np.prod(images.shape[1:])))
    for start in range(0, len(images), count):
        yield images[start : start + count]


def _channels(values: NDArray[np.float64]) -> Channels:
    red, green, blue = values.tolist()
    return red, green, blue


def _along_image(channels: list[float], pixels: Tensor) -> Tensor:
    """Repeat three numbers for every pixel: CPUs are fastest along one long row."""
    row = torch.empty(pixels.shape[1] * pixels.shape[2], 3, device=pixels.device)
    for channel, number in enumerate(channels):
        row[:, channel].fill_(number)  # unlike a copy, this waits for no GPU
    return row.view(-1)
