"""Strong views: jitter, two random operations, normalization, and a square cut out.

Images that drew the same operation are sorted together, so that each operation runs once on a slice
of the batch. Draws are hashes, so the host sorts without waiting for the GPU.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from distillmatch.views.batches import pieces, to_images, to_pixels
from distillmatch.views.draws import (
    Draw,
    coin,
    positions_of,
    random_words,
    to_device,
    uniform,
    whole,
)
from distillmatch.views.normalization import Normalization, Normalizer
from distillmatch.views.operations import OPERATIONS
from distillmatch.views.photometry import Jitter


@dataclass(frozen=True, eq=False)
class OperationDraw:
    """One operation per image: its number (on the CPU), its size from 0 to 1, and its sign."""

    choice: Tensor
    share: Tensor
    negative: Tensor


@dataclass(frozen=True, eq=False)
class StrongDraw:
    """The random numbers of strong views; the center of the cut-out is at `row`, `column`."""

    jitter: Jitter
    operations: tuple[OperationDraw, ...]
    row: Tensor
    column: Tensor


def draw_strong(
    key: int, positions: Tensor, side: int, device: torch.device | None = None
) -> StrongDraw:
    """Draw the strong views of the images at these positions (on the CPU), for a device."""
    places = to_device(positions, device or positions.device)
    words = random_words(
        key,
        places,
        Draw.STRONG_BRIGHTNESS,
        Draw.STRONG_CONTRAST,
        Draw.STRONG_ORDER,
        Draw.FIRST_MAGNITUDE,
        Draw.FIRST_SIGN,
        Draw.SECOND_MAGNITUDE,
        Draw.SECOND_SIGN,
        Draw.CUTOUT_ROW,
        Draw.CUTOUT_COLUMN,
    )
    choices = whole(
        random_words(key, positions, Draw.FIRST_OPERATION, Draw.SECOND_OPERATION), len(OPERATIONS)
    )
    return StrongDraw(
        jitter=Jitter.draw(words[0], words[1], words[2]),
        operations=(
            OperationDraw(choices[0], uniform(words[3]), coin(words[4])),
            OperationDraw(choices[1], uniform(words[5]), coin(words[6])),
        ),
        row=whole(words[7], side),
        column=whole(words[8], side),
    )


def strong_views(
    images: Tensor,
    key: int,
    normalization: Normalization,
    *,
    dtype: torch.dtype = torch.float32,
    positions: Tensor | None = None,
) -> Tensor:
    """Return one normalized strong view of each uint8 image, channels-last, on the same device.

    `positions` (int64, on the CPU) are the images' places in the sequence that the key stands for.
    A view depends on the key and the position alone, not on the rest of the batch.
    """
    pixels = to_pixels(images)
    positions = positions_of(images, positions)
    draw = draw_strong(key, positions, pixels.shape[1], images.device)
    changed = _apply(pixels, draw)
    normalizer = Normalizer(normalization, pixels)
    views = torch.empty(pixels.shape, dtype=dtype, device=pixels.device)
    for piece in pieces(pixels):
        normalizer.write(changed[piece], views[piece])
        _cut_out(views[piece], draw.row[piece], draw.column[piece])
    return to_images(views)


def _apply(pixels: Tensor, draw: StrongDraw) -> Tensor:
    jittered = torch.empty_like(pixels)
    for piece in pieces(pixels):
        jittered[piece] = draw.jitter.apply(pixels[piece], piece)
    # The images stay in the order of the last sorting until the end; `at` says where each one is.
    at = torch.arange(len(pixels))
    for operations in draw.operations:
        order = torch.argsort(operations.choice, stable=True)
        jittered = jittered.index_select(0, to_device(at[order], pixels.device))
        at = torch.empty_like(order)
        at[order] = torch.arange(len(order))
        _apply_sorted(jittered, operations, order)
    return jittered.index_select(0, to_device(at, pixels.device))


def _apply_sorted(pixels: Tensor, draw: OperationDraw, order: Tensor) -> None:
    """Apply each operation to the images that drew it, in place; `order` is the sorting."""
    counts = torch.bincount(draw.choice, minlength=len(OPERATIONS)).tolist()
    order = to_device(order, pixels.device)
    share, negative = draw.share[order], draw.negative[order]
    start = 0
    for operation, count in zip(OPERATIONS.values(), counts, strict=True):
        for piece in pieces(pixels, start, start + count):
            magnitude = operation.magnitude(share[piece], negative[piece])
            pixels[piece] = operation.function(pixels[piece], magnitude)
        start += count


def _cut_out(views: Tensor, row: Tensor, column: Tensor) -> None:
    """Set a square of half the side about each center to zero, in place."""
    count, side = views.shape[:2]
    rows = _outside(row, side).to(views.dtype).unsqueeze(2)
    columns = _outside(column, side).to(views.dtype).unsqueeze(2)
    columns = columns.expand(count, side, 3).reshape(count, 1, side * 3)
    # On a CPU a product with zeros and ones is several times faster than a masked fill.
    views.view(count, side, side * 3).mul_(torch.maximum(rows, columns))


def _outside(center: Tensor, side: int) -> Tensor:
    """Return which lines of each image lie outside the square, (count, side)."""
    size = side // 2
    steps = torch.arange(side, device=center.device) - (center.view(-1, 1) - size // 2)
    return (steps < 0) | (steps >= size)
