"""A sheet that shows what views look like: originals, weak and strong views, every operation."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distillmatch.randomness import shuffled
from distillmatch.report.canvas import MARGIN, MUTED, RULE, Canvas
from distillmatch.sources import Dataset
from distillmatch.views import OPERATIONS, Normalization, strong_views, view_key, weak_views
from distillmatch.views.operations import Operation

Pixels = NDArray[np.uint8]

TILE, GAP = 72, 8
VIEWS = 4
"""Weak and strong views of each image."""
SHEET_IMAGES = 6
HEAD, CAPTION = 62, 20


def draw_views_of(dataset: Dataset, seed: int, path: Path) -> None:
    """Save a picture of views of a few images of a data set, each of another class."""
    classes = shuffled(range(len(dataset.class_names)), seed, "sheet")[:SHEET_IMAGES]
    names = [dataset.class_names[c] for c in classes]
    train, normalization = dataset.train, Normalization.of(dataset.train.images)
    images = train.images[[int(np.flatnonzero(train.labels == c)[0]) for c in classes]]
    tile = images.shape[1] * max(1, round(TILE / images.shape[1]))
    step, rows = tile + GAP, -(-len(OPERATIONS) // 2)
    of_image, of_row = CAPTION + 2 * step + GAP, step + 2 * CAPTION + GAP
    width = (1 + VIEWS) * step - GAP + 2 * MARGIN
    operations_at = HEAD + len(images) * of_image + MARGIN
    canvas = Canvas(width, operations_at + HEAD + rows * of_row)
    _heading(
        canvas,
        0,
        f"Weak and strong views, seed {seed}",
        "each image, four weak views, four strong ones; cut-outs are gray",
    )
    batch = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)
    for row, kind in enumerate((weak_views, strong_views)):
        for column in range(VIEWS):
            views = kind(batch, view_key(seed, "sheet", column), normalization)
            for number, pixels in enumerate(_shown(views, normalization)):
                y = HEAD + number * of_image + CAPTION + row * step
                _tile(canvas, MARGIN + (column + 1) * step, y, pixels, tile)
    for number, (image, name) in enumerate(zip(images, names, strict=True)):
        y = HEAD + number * of_image
        canvas.words(MARGIN, y, name.replace("_", " "))
        _tile(canvas, MARGIN, y + CAPTION, image, tile)
    _heading(
        canvas,
        operations_at - MARGIN,
        f"The {len(OPERATIONS)} operations of strong views",
        "each at both ends of its range, on the first image above",
    )
    for number, (name, operation) in enumerate(OPERATIONS.items()):
        y = operations_at + HEAD - MARGIN + number // 2 * of_row
        left = MARGIN + number % 2 * (width - MARGIN) // 2
        canvas.words(left, y, name.replace("_", " "))
        for place, magnitude in enumerate(operation.extremes() or (None,)):
            x = left + place * step
            _tile(canvas, x, y + CAPTION, _result(operation, images[0], magnitude), tile)
            if magnitude is not None:
                below = _caption(name, magnitude)
                canvas.words(x, y + CAPTION + tile + 3, below, size=12, color=MUTED)
    canvas.save(path)


def _heading(canvas: Canvas, y: int, title: str, below: str) -> None:
    if y:
        canvas.line([(MARGIN, y), (canvas.page.width - MARGIN, y)], color=RULE)
    canvas.words(MARGIN, y + 12, title, size=18)
    canvas.words(MARGIN, y + 38, below, size=12, color=MUTED)


def _tile(canvas: Canvas, x: int, y: int, pixels: Pixels, side: int) -> None:
    """Draw an image in a thin frame, which keeps white ones apart from the page."""
    canvas.box(x - 1, y - 1, side + 1, side + 1, RULE)
    canvas.picture(x, y, pixels, side)


def _result(operation: Operation, image: Pixels, magnitude: float | None) -> Pixels:
    pixels = torch.from_numpy(np.ascontiguousarray(image)).unsqueeze(0)
    changed: Pixels = operation.function(pixels, torch.tensor([magnitude or 0.0])).numpy()[0]
    return changed


def _caption(name: str, magnitude: float) -> str:
    """Return a magnitude in the unit a person would use."""
    if name == "rotate":
        return f"{magnitude:+.0f}°"
    if name == "posterize":
        return f"{magnitude:.0f} bits"
    if name == "solarize":
        return f"from {magnitude:.0f}"
    if name.startswith("translate"):
        return f"{magnitude:+.1f} sides"
    if name.startswith("shear"):
        return f"{magnitude:+.1f}"
    return f"factor {magnitude:.1f}"


def _shown(views: Tensor, normalization: Normalization) -> Pixels:
    """Undo the normalization for display; cut-outs have the mean color."""
    values = views.permute(0, 2, 3, 1) * torch.tensor(normalization.std)
    values = (values + torch.tensor(normalization.mean)) * 255
    shown: Pixels = values.round().clamp(0, 255).to(torch.uint8).numpy()
    return shown
