"""Views of whole batches: plain ones, weak ones, and strong ones.

- plain: normalization alone;
- weak: jitter, horizontal flip, crop with a black border, normalization;
- strong: jitter, two random operations, normalization, and a square cut out.

A view depends on the key and the image's number alone, not on the rest of the batch. Images that
drew the same operation are sorted together, so that each operation runs once on a slice of the
batch. Draws are hashes, so the host sorts without waiting for the GPU.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from distillmatch.views.draws import Draw, coin, random_words, to_device, uniform, whole
from distillmatch.views.normalization import Normalization
from distillmatch.views.operations import (
    OPERATIONS,
    brighten_,
    change_contrast_,
    flip_and_crop,
    to_bytes,
)

PADDING = 4
BRIGHTNESS_SPREAD, CONTRAST_SPREAD = 63 / 255, 0.8
# On a CPU the floats of a piece stay in the second-level cache between two passes. On a GPU pieces
# only limit intermediate results to about two gigabytes.
_CPU_BYTES, _GPU_BYTES = 3 << 18, 3 << 27


class Jitter(NamedTuple):
    """One brightness and one contrast factor per image, and which of the two comes first."""

    brightness: Tensor
    contrast: Tensor
    bright_first: Tensor

    @classmethod
    def of(cls, brightness: Tensor, contrast: Tensor, order: Tensor) -> "Jitter":
        """Make the jitter from three random words per image."""
        return cls(
            uniform(brightness).mul_(2 * BRIGHTNESS_SPREAD).add_(1 - BRIGHTNESS_SPREAD),
            uniform(contrast).mul_(2 * CONTRAST_SPREAD).add_(1 - CONTRAST_SPREAD),
            coin(order),
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


class WeakDraw(NamedTuple):
    """The random numbers of weak views; row and column `PADDING` crop the image itself."""

    jitter: Jitter
    flip: Tensor
    row: Tensor
    column: Tensor


class OperationDraw(NamedTuple):
    """One operation per image: its number (on the CPU), its size from 0 to 1, and its sign."""

    choice: Tensor
    share: Tensor
    negative: Tensor


class StrongDraw(NamedTuple):
    """The random numbers of strong views; the center of the cut-out is at `row`, `column`."""

    jitter: Jitter
    operations: tuple[OperationDraw, OperationDraw]
    row: Tensor
    column: Tensor


def draw_weak(key: int, numbers: Tensor) -> WeakDraw:
    """Draw the weak views of the images of these numbers, on the numbers' device."""
    *of_jitter, flip, row, column = random_words(key, numbers, *list(Draw)[: Draw.CROP_COLUMN + 1])
    places = 2 * PADDING + 1
    return WeakDraw(Jitter.of(*of_jitter), coin(flip), whole(row, places), whole(column, places))


def draw_strong(
    key: int, numbers: Tensor, side: int, device: torch.device | None = None
) -> StrongDraw:
    """Draw the strong views of the images of these numbers (on the CPU), for a device."""
    *of_jitter, size, sign, size2, sign2, row, column = random_words(
        key,
        to_device(numbers, device or numbers.device),
        *(Draw.STRONG_BRIGHTNESS, Draw.STRONG_CONTRAST, Draw.STRONG_ORDER),
        *(Draw.FIRST_MAGNITUDE, Draw.FIRST_SIGN, Draw.SECOND_MAGNITUDE, Draw.SECOND_SIGN),
        *(Draw.CUTOUT_ROW, Draw.CUTOUT_COLUMN),
    )
    choices = random_words(key, numbers, Draw.FIRST_OPERATION, Draw.SECOND_OPERATION)
    first, second = whole(choices, len(OPERATIONS))
    operations = (
        OperationDraw(first, uniform(size), coin(sign)),
        OperationDraw(second, uniform(size2), coin(sign2)),
    )
    return StrongDraw(Jitter.of(*of_jitter), operations, whole(row, side), whole(column, side))


def plain_views(
    images: Tensor, normalization: Normalization, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the uint8 images normalized and otherwise unchanged, channels-last: for evaluation."""
    pixels = _pixels(images)
    return _views(pixels, normalization, dtype, pixels.__getitem__)


def weak_views(
    images: Tensor,
    key: int,
    normalization: Normalization,
    *,
    dtype: torch.dtype = torch.float32,
    first: int = 0,
) -> Tensor:
    """Return one normalized weak view of each uint8 image, channels-last, on the same device.

    `first` is the first image's number in the sequence of images that the key stands for.
    """
    pixels = _pixels(images)
    numbers = torch.arange(first, first + len(images), device=images.device)
    draw = draw_weak(key, numbers)

    def changed(piece: slice) -> Tensor:
        jittered = draw.jitter.apply(pixels[piece], piece)
        places = draw.flip[piece], draw.row[piece], draw.column[piece]
        return flip_and_crop(jittered, *places, PADDING)

    return _views(pixels, normalization, dtype, changed)


def strong_views(
    images: Tensor,
    key: int,
    normalization: Normalization,
    *,
    dtype: torch.dtype = torch.float32,
    first: int = 0,
) -> Tensor:
    """Return one normalized strong view of each uint8 image, channels-last, on the same device.

    `first` is the first image's number in the sequence of images that the key stands for.
    """
    pixels = _pixels(images)
    numbers = torch.arange(first, first + len(images))  # on the CPU, where they are sorted
    draw = draw_strong(key, numbers, pixels.shape[1], images.device)
    changed = _apply(pixels, draw)
    views = _views(pixels, normalization, dtype, changed.__getitem__)
    for piece in _pieces(pixels):
        _cut_out(views[piece].permute(0, 2, 3, 1), draw.row[piece], draw.column[piece])
    return views


def _pixels(images: Tensor) -> Tensor:
    """Return (count, 3, side, side) images as contiguous (count, side, side, 3) pixels.

    Images in channels-last memory are not copied.
    """
    side = images.shape[-1]
    if images.dtype != torch.uint8 or images.shape != (len(images), 3, side, side):
        raise ValueError(
            "images must be uint8 of shape (count, 3, side, side), "
            f"not {images.dtype} of shape {tuple(images.shape)}"
        )
    return images.permute(0, 2, 3, 1).contiguous()


def _pieces(pixels: Tensor, start: int = 0, stop: int | None = None) -> Iterator[slice]:
    """Cut the images from `start` to `stop` into pieces that suit their device."""
    stop = len(pixels) if stop is None else stop
    budget = _CPU_BYTES if pixels.device.type == "cpu" else _GPU_BYTES
    count = max(1, budget // (4 * max(1, pixels[:1].numel())))
    for first in range(start, stop, count):
        yield slice(first, min(first + count, stop))


def _views(
    pixels: Tensor,
    normalization: Normalization,
    dtype: torch.dtype,
    changed: Callable[[slice], Tensor],
) -> Tensor:
    """Return `(changed pixels / 255 - mean) / std`, channels-last, made piece by piece."""
    scale, shift = (_along_image(numbers, pixels) for numbers in normalization.scales_and_shifts())
    views = torch.empty(pixels.shape, dtype=dtype, device=pixels.device)
    for piece in _pieces(pixels):
        target = views[piece].view(piece.stop - piece.start, -1)
        values = target if dtype == torch.float32 else target.to(torch.float32)
        values.copy_(changed(piece).view_as(target)).mul_(scale).add_(shift)
        if values is not target:
            target.copy_(values)
    return views.permute(0, 3, 1, 2)


def _along_image(channels: list[float], pixels: Tensor) -> Tensor:
    """Repeat three numbers for every pixel: CPUs are fastest along one long row."""
    row = torch.empty(pixels.shape[1] * pixels.shape[2], 3, device=pixels.device)
    for channel, number in enumerate(channels):
        row[:, channel].fill_(number)  # unlike a copy, this waits for no GPU
    return row.view(-1)


def _apply(pixels: Tensor, draw: StrongDraw) -> Tensor:
    """Jitter the images and apply both operations."""
    changed = torch.empty_like(pixels)
    for piece in _pieces(pixels):
        changed[piece] = draw.jitter.apply(pixels[piece], piece)
    # The images stay in the order of the last sorting until the end; `at` says where each one is.
    at = torch.arange(len(pixels))
    for operations in draw.operations:
        order = torch.argsort(operations.choice, stable=True)
        changed = changed.index_select(0, to_device(at[order], pixels.device))
        at = torch.empty_like(order)
        at[order] = torch.arange(len(order))
        counts = torch.bincount(operations.choice, minlength=len(OPERATIONS)).tolist()
        order = to_device(order, pixels.device)
        share, negative, start = operations.share[order], operations.negative[order], 0
        for operation, count in zip(OPERATIONS.values(), counts, strict=True):
            for piece in _pieces(changed, start, start + count):
                magnitude = operation.magnitude(share[piece], negative[piece])
                changed[piece] = operation.function(changed[piece], magnitude)
            start += count
    return changed.index_select(0, to_device(at, pixels.device))


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
