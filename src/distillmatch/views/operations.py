"""The sixteen operations of strong views, each on a whole batch and equal to Pillow's.

An operation takes uint8 pixels (count, side, side, 3) and one magnitude per image, and returns
new pixels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from distillmatch.views import geometry
from distillmatch.views.photometry import (
    blend_,
    brighten_,
    change_contrast_,
    luminance,
    to_bytes,
)

Function = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Operation:
    """An operation and how its magnitude is drawn: `center ± (low to high)`.

    With `signed` the sign is drawn too, with `whole` the magnitude is an integer up to and with
    `high`. An operation without a magnitude has low and high 0.
    """

    function: Function
    low: float = 0.0
    high: float = 0.0
    center: float = 0.0
    signed: bool = False
    whole: bool = False

    @property
    def span(self) -> float:
        """The factor of a number in [0, 1)."""
        return self.high - self.low + self.whole

    def magnitude(self, share: Tensor, negative: Tensor) -> Tensor:
        """Turn uniform numbers in [0, 1) and random signs into magnitudes, float32."""
        if self.whole:
            return (share * self.span).floor_().add_(self.low).clamp_(max=self.high)
        size = share * self.span + self.low
        if self.signed:
            size = torch.where(negative, -size, size)
        return size + self.center

    def extremes(self) -> tuple[float, ...]:
        """Return the largest and smallest magnitude, or nothing if there is none."""
        if self.low == self.high:
            return ()
        if self.signed:
            return (self.center - self.high, self.center + self.high)
        return (self.center + self.low, self.center + self.high)


def identity(pixels: Tensor, _: Tensor) -> Tensor:
    """Change nothing."""
    return pixels


def mirror(pixels: Tensor, _: Tensor) -> Tensor:
    """Exchange left and right."""
    return geometry.mirror(pixels)


def autocontrast(pixels: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel so that its darkest value becomes 0 and its brightest 255."""
    count, side = pixels.shape[:2]
    rows = pixels.view(count, side, side * 3)
    low = rows.amin(dim=1).view(count, side, 3).amin(dim=1).to(torch.float64)
    high = _brightest(pixels).to(torch.float64)
    flat = high == low
    # Pillow computes its table in float64, where the brightest value may be truncated to 254. A
    # number divided by a tensor would be multiplied by its reciprocal, which rounds twice.
    scale = torch.full_like(low, 255.0) / torch.where(flat, 1.0, high - low)
    shift = (-low * scale).masked_fill_(flat, 0.0)
    scale = scale.masked_fill_(flat, 1.0)
    values = rows.to(torch.float64).mul_(_along_rows(scale, side)).add_(_along_rows(shift, side))
    return to_bytes(values.clamp_(0.0, 255.0)).view_as(pixels)


def equalize(pixels: Tensor, _: Tensor) -> Tensor:
    """Spread each channel's values so that all are about equally frequent."""
    count, side = pixels.shape[:2]
    tables = torch.arange(count * 3, device=pixels.device).mul_(256).view(count, 3)
    index = (pixels.view(count, side, side * 3) + _along_rows(tables, side)).view(-1)
    histogram = torch.zeros(count * 768, dtype=torch.int32, device=pixels.device)
    one = torch.ones(1, dtype=torch.int32, device=pixels.device)
    histogram = histogram.scatter_add_(0, index, one.expand_as(index)).view(count * 3, 256)
    up_to = histogram.cumsum(dim=1, dtype=torch.int32)
    below = up_to - histogram
    # Pixels of the brightest value do not count for the step between two levels.
    brightest = _brightest(pixels).to(torch.int64)
    step = below.gather(1, brightest.view(-1, 1)).div_(255, rounding_mode="floor")
    table = (below + step // 2).div_(step.clamp(min=1), rounding_mode="floor").clamp_(max=255)
    unchanged = torch.arange(256, dtype=torch.int32, device=pixels.device)
    table = torch.where(step == 0, unchanged, table).to(torch.uint8)
    return table.view(-1).index_select(0, index).view_as(pixels)


def solarize(pixels: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values at and above the threshold."""
    # Whole values are below the threshold exactly when they are below the next whole number.
    limit = threshold.ceil().to(torch.int16).view(-1, 1, 1, 1)
    above = (pixels >= limit).to(torch.uint8)
    return pixels ^ above.mul_(255)


def posterize(pixels: Tensor, bits: Tensor) -> Tensor:
    """Keep only the highest bits of each value."""
    cleared = 8 - bits.to(torch.int32)
    mask = (255 << cleared).to(torch.uint8)
    return pixels & mask.view(-1, 1, 1, 1)


def invert(pixels: Tensor, _: Tensor) -> Tensor:
    """Turn each value into its complement."""
    return ~pixels


def contrast(pixels: Tensor, factor: Tensor) -> Tensor:
    """Blend with the gray of the mean luminance."""
    return to_bytes(change_contrast_(pixels.to(torch.float32), factor))


def color(pixels: Tensor, factor: Tensor) -> Tensor:
    """Blend with the gray version of the image."""
    values = pixels.to(torch.float32)
    gray = luminance(values).unsqueeze(3).expand_as(values).contiguous()
    return to_bytes(blend_(values, gray, factor))


def brightness(pixels: Tensor, factor: Tensor) -> Tensor:
    """Blend with black."""
    return to_bytes(brighten_(pixels.to(torch.float32), factor))


def sharpness(pixels: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image smoothed by a 3 by 3 kernel (ones around a five); borders stay."""
    count, side = pixels.shape[:2]
    if side < 3:
        return pixels
    rows = pixels.to(torch.float32).view(count, side, side * 3)
    inner = rows[:, 1:-1, 3:-3]
    smooth = rows[:, :-2] + rows[:, 1:-1]
    smooth += rows[:, 2:]
    smooth = smooth[:, :, :-6] + smooth[:, :, 3:-3] + smooth[:, :, 6:]
    # n / 13 + 1/2 is never within 1/26 of an integer, so rounding in float32 does no harm.
    smooth = smooth.add_(inner, alpha=4.0).mul_(1 / 13).add_(0.5).floor_()
    blend_(inner.unsqueeze(3), smooth.unsqueeze(3), factor)
    return to_bytes(rows).view_as(pixels)


def _brightest(pixels: Tensor) -> Tensor:
    """Return each channel's largest value, (count, 3)."""
    count, side = pixels.shape[:2]
    columns = pixels.view(count, side, side * 3).amax(dim=1)
    return columns.view(count, side, 3).amax(dim=1)


def _along_rows(channels: Tensor, side: int) -> Tensor:
    """Repeat (count, 3) numbers along a row, (count, 1, 3 * side): CPUs broadcast 3 slowly."""
    return channels.repeat(1, side).unsqueeze(1)


OPERATIONS = MappingProxyType(
    {
        "identity": Operation(identity),
        "shear_x": Operation(geometry.shear_x, 0.0, 0.3, signed=True),
        "shear_y": Operation(geometry.shear_y, 0.0, 0.3, signed=True),
        "translate_x": Operation(geometry.translate_x, 0.0, 0.3, signed=True),
        "translate_y": Operation(geometry.translate_y, 0.0, 0.3, signed=True),
        "rotate": Operation(geometry.rotate, 0.0, 30.0, signed=True),
        "mirror": Operation(mirror),
        "autocontrast": Operation(autocontrast),
        "equalize": Operation(equalize),
        "solarize": Operation(solarize, 0.0, 256.0),
        "posterize": Operation(posterize, 4.0, 8.0, whole=True),
        "invert": Operation(invert),
        "contrast": Operation(contrast, 0.1, 0.9, center=1.0, signed=True),
        "color": Operation(color, 0.1, 0.9, center=1.0, signed=True),
        "brightness": Operation(brightness, 0.1, 0.9, center=1.0, signed=True),
        "sharpness": Operation(sharpness, 0.1, 0.9, center=1.0, signed=True),
    }
)
"""The operations by name, in the order of their numbers in a draw."""
