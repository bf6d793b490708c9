"""Weak views: jitter, horizontal flip, crop with a black border, normalization."""

from dataclasses import dataclass

import torch
from torch import Tensor

from distillmatch.views.batches import pieces, to_images, to_pixels
from distillmatch.views.draws import Draw, coin, positions_of, random_words, to_device, whole
from distillmatch.views.geometry import flip_and_crop
from distillmatch.views.normalization import Normalization, Normalizer
from distillmatch.views.photometry import Jitter

PADDING = 4


@dataclass(frozen=True, eq=False)
class WeakDraw:
    """The random numbers of weak views; row and column `padding` crop the image itself."""

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


def weak_views(
    images: Tensor,
    key: int,
    normalization: Normalization,
    *,
    dtype: torch.dtype = torch.float32,
    positions: Tensor | None = None,
    padding: int = PADDING,
) -> Tensor:
    """Return one normalized weak view of each uint8 image, channels-last, on the same device.

    `positions` (int64, on the CPU) are the images' places in the sequence that the key stands for.
    A view depends on the key and the position alone, not on the rest of the batch.
    """
    pixels = to_pixels(images)
    places = to_device(positions_of(images, positions), images.device)
    draw = draw_weak(key, places, padding)
    normalizer = Normalizer(normalization, pixels)
    views = torch.empty(pixels.shape, dtype=dtype, device=pixels.device)
    for piece in pieces(pixels):
        jittered = draw.jitter.apply(pixels[piece], piece)
        cropped = flip_and_crop(
            jittered, draw.flip[piece], draw.row[piece], draw.column[piece], padding
        )
        normalizer.write(cropped, views[piece])
    return to_images(views)
