"""Arithmetic on grey values, as Pillow does it: in float32, cut to whole numbers after each step.

Everything here works on float32 pixels (count, side, side, 3) that hold whole numbers from 0 to
255, and on one factor per image. Results are from 0 to 255 but not cut yet: `to_bytes` cuts them,
and `floor_` does where another step follows. Products and sums are separate passes on purpose: a
fused multiply-add rounds once instead of twice, and would now and then miss Pillow by one.
"""

import torch
from torch import Tensor


def brighten_(values: Tensor, factor: Tensor) -> Tensor:
    """Multiply each image by its factor (not negative), in place."""
    return values.mul_(_per_image(factor)).clamp_(max=255.0)


def blend_(values: Tensor, degenerate: Tensor, factor: Tensor) -> Tensor:
    """Move from the degenerate image (factor 0) to the image (factor 1) or beyond, in place."""
    values.sub_(degenerate).mul_(_per_image(factor)).add_(degenerate)
    return values.clamp_(0.0, 255.0)


def change_contrast_(values: Tensor, factor: Tensor) -> Tensor:
    """Blend each image with the grey of its mean luminance, in place."""
    return blend_(values, _per_image(mean_luminance(values)), factor)


def to_bytes(values: Tensor) -> Tensor:
    """Cut the values to uint8; by way of int16, which CPUs convert several at a time."""
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
    grey = luminance(values)
    pixels = grey.shape[1] * grey.shape[2]
    # Rows are short enough for an exact float32 sum; a whole large image may not be. The division
    # is one of whole numbers because GPUs multiply by a reciprocal instead.
    total = grey.sum(dim=2).to(torch.int64).sum(dim=1)
    mean = total.mul_(2).add_(pixels).div_(2 * pixels, rounding_mode="floor")
    return mean.to(torch.float32)


def _per_image(numbers: Tensor) -> Tensor:
    return numbers.view(-1, 1, 1, 1)
