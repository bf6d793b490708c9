"""Weak views: jitter, horizontal flip, crop with a black border, normalisation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from distillmatch.views.batches import pieces, to_images, to_pixels
from distillmatch.views.draws import Draw, coin, positions_of, random_words, to_device, whole
from distillmatch.views.geometry import flip_and_crop
from distillmatch.views.jitter import Jitter
from distillmatch.views.normalization import Normalization, Normalizer

PADDING = 4


@dataclass(frozen=True, eq=False)
class WeakDraw:
    """What was drawn for each weak view; a crop at row and column `padding` is the image itself."""

    jitter: Jitter
    flip: Tensor
    row: Tensor
    column: Tensor
    padding: int


def draw_weak(key: int, positions: Tensor, padding: int = PADDING) -> WeakDraw:
    """Draw the weak views of the images at these positions, on the positions' device."""
    words = random_words(
        key,
        positions,
        Draw.WEAK_BRIGHTNESS,
        Draw.WEAK_CONTRAST,
        Draw.WEAK_ORDER,
        Draw.FLIP,
        Draw.CROP_ROW,
        Draw.CROP_COLUMN,
    )
    return WeakDraw(
        jitter=Jitter.draw(words[0], words[1], words[2]),
        flip=coin(words[3]),
        row=whole(words[4], 2 * padding + 1),
        column=whole(words[5], 2 * padding + 1),
        padding=padding,
    )


def apply_weak(images: Tensor, draw: WeakDraw) -> Tensor:
    """Return the drawn views as uint8 images, before normalisation."""
    pixels = to_pixels(images)
    result = torch.empty_like(pixels)
    for piece in pieces(pixels):
        result[piece] = _apply(pixels[piece], draw, piece)
    return to_images(result)


def weak_views(
    images: Tensor,
    key: int,
    normalization: Normalization,
    *,
    dtype: torch.dtype = torch.float32,
    positions: Tensor | None = None,
    padding: int = PADDING,
) -> Tensor:
    """Return one normalised weak view of each uint8 image, channels-last, on the same device.

    `positions` (int64, on the CPU) are the images' places in the sequence that the key stands for;
    an image's view depends on the key and its position alone, not on the rest of the batch.
    """
    pixels = to_pixels(images)
    places = to_device(positions_of(images, positions), images.device)
    draw = draw_weak(key, places, padding)
    normalizer = Normalizer(normalization, pixels)
    views = torch.empty(pixels.shape, dtype=dtype, device=pixels.device)
    for piece in pieces(pixels):
        normalizer.write(_apply(pixels[piece], draw, piece), views[piece])
    return to_images(views)


def _apply(pixels: Tensor, draw: WeakDraw, piece: slice) -> Tensor:
    jittered = draw.jitter.apply(pixels, piece)
    return flip_and_crop(
        jittered, draw.flip[piece], draw.row[piece], draw.column[piece], draw.padding
    )
