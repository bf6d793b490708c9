"""Brightness, contrast and luminance as Pillow computes them, and the jitter of all views.

The functions take float32 pixels (count, side, side, 3) that hold whole numbers from 0 to 255, and
one factor per image. Their results are not truncated: call `to_bytes`, or `floor_` before another
step. Products and sums are separate passes: a fused multiply-add rounds once instead of twice and
would sometimes differ from Pillow by one.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from distillmatch.views.draws import coin, uniform

BRIGHTNESS_SPREAD = 63 / 255
CONTRAST_SPREAD = 0.8


@dataclass(frozen=True, eq=False)
class Jitter:
    """One brightness and one contrast factor per image, and which of the two comes first."""

    brightness: Tensor
    contrast: Tensor
    bright_first: Tensor

    @classmethod
    def draw(cls, brightness: Tensor, contrast: Tensor, order: Tensor) -> Self:
        """Draw the jitter from random words, one of each per image."""
        return cls(
            brightness=_around_one(brightness, BRIGHTNESS_SPREAD),
            contrast=_around_one(contrast, CONTRAST_SPREAD),
            bright_first=coin(order),
        )

    def apply(self, pixels: Tensor, piece: slice) -> Tensor:
        """Return jittered copies of uint8 pixels, which are the given piece of the batch."""
        brightness, first = self.brightness[piece], self.bright_first[piece]
        one = torch.ones_like(brightness)
        values = pixels.to(torch.float32)
        # A factor of one changes nothing, so brightness can stand on both sides of contrast.
        brighten_(values, torch.where(first, brightness, one)).floor_()
        change_contrast_(values, self.contrast[piece]).floor_()
        return to_bytes(brighten_(values, torch.where(first, one, brightness)))


def brighten_(values: Tensor, factor: Tensor) -> Tensor:
    """Multiply each image by its factor (not negative), in place."""
    return values.mul_(_per_image(factor)).clamp_(max=255.0)


def blend_(values: Tensor, degenerate: Tensor, factor: Tensor) -> Tensor:
    """Move from the degenerate image (factor 0) to the image (factor 1) or beyond, in place."""
    values.sub_(degenerate).mul_(_per_image(factor)).add_(degenerate)
    return values.clamp_(0.0, 255.0)


def change_contrast_(values: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with the gray of its mean luminance, in place."""
    return blend_(values, _per_image(mean_luminance(values)), factor)


def to_bytes(values: Tensor) -> Tensor:
    """Truncate to uint8, by way of int16, for which CPUs have vector instructions."""
    return values.to(torch.int16).to(torch.uint8)


def luminance(values: Tensor) -> Tensor:
    """Return the luminance of every pixel, (count, side, side).

    Pillow's weights are 16-bit fractions; every intermediate sum stays below 2^24, so float32
    computes it exactly.
    """
    weighted = values[..., 0] * 19595.0
    weighted.add_(values[..., 1], alpha=38470.0).add_(values[..., 2], alpha=7471.0)
    return weighted.add_(32768.0).mul_(2.0**-16).floor_()


def mean_luminance(values: Tensor) -> Tensor:
    """Return each image's mean luminance, rounded to a whole number, halves up."""
    gray = luminance(values)
    pixels = gray.shape[1] * gray.shape[2]
    # The float32 sum of a row is exact, that of a large image may not be. The division is of
    # integers because GPUs multiply by a reciprocal instead.
    total = gray.sum(dim=2).to(torch.int64).sum(dim=1)
    mean = total.mul_(2).add_(pixels).div_(2 * pixels, rounding_mode="floor")
    return mean.to(torch.float32)


def _per_image(numbers: Tensor) -> Tensor:
    return numbers.view(-1, 1, 1, 1)


def _around_one(words: Tensor, spread: float) -> Tensor:
    return uniform(words).mul_(2 * spread).add_(1 - spread)
