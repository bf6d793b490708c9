"""Moving pixels: nearest-neighbor affine maps as Pillow computes them, flips and crops.

All functions take and return uint8 pixels (count, side, side, 3). Pixels from outside the image are
black.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

_ONE = 65536  # Pillow's fixed-point coordinates have 16 fractional bits


def shear_x(pixels: Tensor, slope: Tensor) -> Tensor:
    """Move each row sideways by the slope times its distance from the top."""
    return _affine(pixels, (1.0, slope, 0.0, 0.0, 1.0, 0.0))


def shear_y(pixels: Tensor, slope: Tensor) -> Tensor:
    """Move each column up or down by the slope times its distance from the left."""
    return _affine(pixels, (1.0, 0.0, 0.0, slope, 1.0, 0.0))


def translate_x(pixels: Tensor, share: Tensor) -> Tensor:
    """Move the image to the left by a share of its side."""
    return _shift(pixels, columns=_whole_steps(share, pixels))


def translate_y(pixels: Tensor, share: Tensor) -> Tensor:
    """Move the image up by a share of its side."""
    return _shift(pixels, rows=_whole_steps(share, pixels))


def rotate(pixels: Tensor, degrees: Tensor) -> Tensor:
    """Rotate the image counter-clockwise about its center."""
    angle = degrees.to(torch.float64) * (-math.pi / 180)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    center = pixels.shape[1] / 2
    return _affine(
        pixels,
        (
            cosine,
            sine,
            center - cosine * center - sine * center,
            -sine,
            cosine,
            center + sine * center - cosine * center,
        ),
    )


def mirror(pixels: Tensor) -> Tensor:
    """Exchange left and right."""
    return pixels.flip(2)


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


def _whole_steps(share: Tensor, pixels: Tensor) -> Tensor:
    return (share.to(torch.float64) * pixels.shape[1] + 0.5).floor_().to(torch.int32)


def _shift(pixels: Tensor, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
    """Read every pixel some rows further down and some columns further right."""
    side = pixels.shape[1]
    lines = torch.arange(1, side + 1, dtype=torch.int32, device=pixels.device)
    lines = lines.expand(len(pixels), side)
    y = lines if rows is None else (lines + rows.view(-1, 1)).clamp_(0, side + 1)
    x = lines if columns is None else (lines + columns.view(-1, 1)).clamp_(0, side + 1)
    return _gather(pixels, y.unsqueeze(2), x.unsqueeze(1), border=1)


def _affine(pixels: Tensor, matrix: tuple[float | Tensor, ...]) -> Tensor:
    """Read pixel (x, y) at (ax + by + c, dx + ey + f), with one matrix (a to f) for each image."""
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
    return _gather(pixels, y, x, border=1)


def _fixed(number: Tensor) -> Tensor:
    return (number * _ONE + 0.5).floor_().to(torch.int32)


def _gather(pixels: Tensor, rows: Tensor, columns: Tensor, border: int) -> Tensor:
    """Return the pixels at the rows and columns of the image with a black border."""
    count, side = pixels.shape[:2]
    width = side + 2 * border
    bordered = pad(pixels, (0, 0, border, border, border, border))
    # 32 bits suffice for the pixels of one piece of a batch, and take half the time.
    first = torch.arange(count, dtype=torch.int32, device=pixels.device).mul_(width * width)
    index = (rows * width).add_(first.view(-1, 1, 1)) + columns
    found = bordered.view(-1, 3).index_select(0, index.view(-1).to(torch.int64))
    return found.view(count, side, side, 3)
