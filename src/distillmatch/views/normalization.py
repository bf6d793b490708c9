"""Normalization by the mean and standard deviation of the training images."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

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
        if not images.size:
            raise ValueError("there must be at least one image to measure")
        # Counts of the 256 values are exact until the last division.
        counts = np.zeros((3, 256), dtype=np.int64)
        size = max(1, _CHUNK_BYTES // int(np.prod(images.shape[1:])))
        for start in range(0, len(images), size):
            chunk = images[start : start + size]
            for channel in range(3):
                counts[channel] += np.bincount(chunk[..., channel].ravel(), minlength=256)
        values = np.arange(256, dtype=np.float64) / 255
        total = counts[0].sum()
        mean = counts @ values / total
        variance = (counts * (values - mean[:, None]) ** 2).sum(axis=1) / total
        std = np.where(variance > 0, np.sqrt(variance), 1.0)
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def scales_and_shifts(self) -> tuple[list[float], list[float]]:
        """Return the scale and the shift of values from 0 to 255, by channel."""
        pairs = list(zip(self.mean, self.std, strict=True))
        return [1 / (255 * std) for _, std in pairs], [-mean / std for mean, std in pairs]
