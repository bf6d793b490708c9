"""Operations on whole batches of pixels, each equal to Pillow's: jitter, moves, and the sixteen.

Pixels are uint8 of shape (count, side, side, 3); what moves in from outside the image is black. An
operation of strong views takes one magnitude per image and returns new pixels. Functions whose name
ends in `_` change float32 pixels of whole numbers from 0 to 255 in place, by one factor per image;
call `to_bytes`, or `floor_`, on what they return. Products and sums are separate passes: a fused
multiply-add rounds once instead of twice and would sometimes differ from Pillow by one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn.functional import pad

AROUND_ONE = 0.1, 0.9, 1.0
_ONE = 65536  # Pillow's fixed-point coordinates have 16 fractional bits
Function = Callable[[Tensor, Tensor], Tensor]
Number = float | Tensor


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

    def magnitude(self, share: Tensor, negative: Tensor) -> Tensor:
        """Turn uniform numbers in [0, 1) and random signs into magnitudes, float32."""
        if self.whole:
            whole = (share * (self.high - self.low + 1)).floor_()
            return whole.add_(self.low).clamp_(max=self.high)
        size = share * (self.high - self.low) + self.low
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


def color(pixels: Tensor, factor: Tensor) -> Tensor:
    """Blend with the gray version of the image."""
    values = pixels.to(torch.float32)
    gray = luminance(values).unsqueeze(3).expand_as(values).contiguous()
    return to_bytes(blend_(values, gray, factor))


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


def rotate(pixels: Tensor, degrees: Tensor) -> Tensor:
    """Rotate the image counter-clockwise about its center."""
    angle = degrees.to(torch.float64) * (-math.pi / 180)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    center = pixels.shape[1] / 2
    c = center - cosine * center - sine * center
    f = center + sine * center - cosine * center
    return _affine(pixels, cosine, sine, c, -sine, cosine, f)


def flip_and_crop(
    pixels: Tensor, flip: Tensor, row: Tensor, column: Tensor, padding: int
) -> Tensor:
    """Mirror where `flip` is true, then crop the old size out of the image with a black border.

    `row` and `column` are the corner of the crop in the bordered image: 0 to twice the padding.
    """
    count, side = pixels.shape[:2]
    inside, width = slice(padding, padding + side), side + 2 * padding
    # Each image is stored as it is and mirrored, so that flip and crop together only choose where
    # the rows of the result begin. Whole rows are copied faster than single pixels.
    bordered = pixels.new_zeros(2, count, width, width, 3)
    bordered[0, :, inside, inside] = pixels
    bordered[1, :, inside, inside] = pixels.flip(2)
    starts = 2 * count * width * width - side + 1
    windows = bordered.as_strided((max(0, starts), 3 * side), (3, 1))
    image = flip.to(torch.int64) * count + torch.arange(count, device=pixels.device)
    rows = (image * width + row).view(-1, 1) + torch.arange(side, device=pixels.device)
    begin = rows * width + column.view(-1, 1)
    return windows.index_select(0, begin.view(-1)).view(count, side, side, 3)


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


def _brightest(pixels: Tensor) -> Tensor:
    """Return each channel's largest value, (count, 3)."""
    count, side = pixels.shape[:2]
    columns = pixels.view(count, side, side * 3).amax(dim=1)
    return columns.view(count, side, 3).amax(dim=1)


def _along_rows(channels: Tensor, side: int) -> Tensor:
    """Repeat (count, 3) numbers along a row, (count, 1, 3 * side): CPUs broadcast 3 slowly."""
    return channels.repeat(1, side).unsqueeze(1)


def _of_floats(change: Function) -> Function:
    return lambda pixels, factor: to_bytes(change(pixels.to(torch.float32), factor))


def _steps(share: Tensor, pixels: Tensor) -> Tensor:
    """Return shares of the side as whole numbers of pixels."""
    return (share.to(torch.float64) * pixels.shape[1] + 0.5).floor_()


def _affine(pixels: Tensor, *matrix: Number) -> Tensor:
    """Read pixel (x, y) at (ax + by + c, dx + ey + f), by one number or one for each image."""
    side = pixels.shape[1]
    zero = torch.zeros(len(pixels), 1, 1, dtype=torch.float64, device=pixels.device)
    a, b, c, d, e, f = (
        zero + (entry.view(-1, 1, 1) if isinstance(entry, Tensor) else entry) for entry in matrix
    )
    steps = torch.arange(side, dtype=torch.int32, device=pixels.device)
    across, down = steps.view(1, 1, side), steps.view(1, side, 1)
    x = (_fixed(c + a * 0.5 + b * 0.5) + _fixed(b) * down) + _fixed(a) * across
    y = (_fixed(f + d * 0.5 + e * 0.5) + _fixed(e) * down) + _fixed(d) * across
    # The border of one pixel stands for everything outside.
    x = x.bitwise_right_shift_(16).clamp_(-1, side).add_(1)
    y = y.bitwise_right_shift_(16).clamp_(-1, side).add_(1)
    count, width = len(pixels), side + 2
    bordered = pad(pixels, (0, 0, 1, 1, 1, 1))
    # 32 bits suffice for the pixels of one piece of a batch, and take half the time.
    first = torch.arange(count, dtype=torch.int32, device=pixels.device).mul_(width * width)
    index = (y * width).add_(first.view(-1, 1, 1)) + x
    found = bordered.view(-1, 3).index_select(0, index.view(-1).to(torch.int64))
    return found.view(count, side, side, 3)


def _fixed(number: Tensor) -> Tensor:
    return (number * _ONE + 0.5).floor_().to(torch.int32)


def _per_image(numbers: Tensor) -> Tensor:
    return numbers.view(-1, 1, 1, 1)


OPERATIONS = MappingProxyType(
    {
        "identity": Operation(lambda pixels, _: pixels),
        "shear_x": Operation(lambda p, s: _affine(p, 1, s, 0, 0, 1, 0), 0.0, 0.3, signed=True),
        "shear_y": Operation(lambda p, s: _affine(p, 1, 0, 0, s, 1, 0), 0.0, 0.3, signed=True),
        "translate_x": Operation(
            lambda p, x: _affine(p, 1, 0, _steps(x, p), 0, 1, 0), 0.0, 0.3, signed=True
        ),
        "translate_y": Operation(
            lambda p, y: _affine(p, 1, 0, 0, 0, 1, _steps(y, p)), 0.0, 0.3, signed=True
        ),
        "rotate": Operation(rotate, 0.0, 30.0, signed=True),
        "mirror": Operation(lambda pixels, _: pixels.flip(2)),
        "autocontrast": Operation(autocontrast),
        "equalize": Operation(equalize),
        "solarize": Operation(solarize, 0.0, 256.0),
        "posterize": Operation(posterize, 4.0, 8.0, whole=True),
        "invert": Operation(lambda pixels, _: ~pixels),
        "contrast": Operation(_of_floats(change_contrast_), *AROUND_ONE, signed=True),
        "color": Operation(color, *AROUND_ONE, signed=True),
        "brightness": Operation(_of_floats(brighten_), *AROUND_ONE, signed=True),
        "sharpness": Operation(sharpness, *AROUND_ONE, signed=True),
    }
)
"""The operations by name, in the order of their numbers in a draw."""
