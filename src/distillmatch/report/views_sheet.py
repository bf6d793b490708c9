"""A sheet that shows what views look like: originals, weak and strong views, every operation."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from distillmatch.randomness import shuffled
from distillmatch.report.canvas import save_picture
from distillmatch.sources import Dataset
from distillmatch.views import OPERATIONS, Normalization, strong_views, view_key, weak_views
from distillmatch.views.operations import Operation

Pixels = NDArray[np.uint8]

_TILE = 96
_GAP = 8
_MARGIN = 40
_WEAK = 4
_STRONG = 4
SHEET_IMAGES = 6
_OPERATION_COLUMNS = 4
_NAME_WIDTH = 110
_CAPTION = 20
_INK = "#1f2328"
_QUIET = "#656d76"
_LINE = "#d0d7de"
_WEAK_INK = "#0a5cad"
_STRONG_INK = "#b3421b"


def draw_views_of(dataset: Dataset, seed: int, path: Path) -> None:
    """Save a sheet of a few images of a data set, each of another class."""
    shown = shuffled(range(len(dataset.class_names)), seed, "sheet")[:SHEET_IMAGES]
    chosen = [int(np.flatnonzero(dataset.train.labels == c)[0]) for c in shown]
    draw_views_sheet(
        dataset.train.images[chosen],
        [dataset.class_names[c] for c in shown],
        Normalization.of(dataset.train.images),
        seed,
        path,
    )


def draw_views_sheet(
    images: Pixels, names: Sequence[str], normalization: Normalization, seed: int, path: Path
) -> None:
    """Save a picture of views of the first few images (count, side, side, 3), named by `names`."""
    if not len(images) or len(images) != len(names):
        raise ValueError(f"expected images and a name for each, not {len(images)} and {len(names)}")
    images, names = images[:SHEET_IMAGES], names[:SHEET_IMAGES]
    zoom = max(1, round(_TILE / images.shape[1]))
    sheet = _Sheet(tile=zoom * images.shape[1])
    sheet.title(
        "Weak and strong views",
        f"seed {seed}, images of {images.shape[1]} by {images.shape[1]} pixels, "
        f"enlarged {zoom} times",
    )
    _draw_views(sheet, images, names, normalization, seed)
    _draw_operations(sheet, images[0])
    save_picture(sheet.finished(), path)


class _Sheet:
    """A white page on which blocks are drawn from the top downwards."""

    def __init__(self, tile: int) -> None:
        self.tile = tile
        self.step = tile + _GAP
        self.top = _MARGIN
        per_cell = 2 * self.step + 2 * _GAP
        views = _NAME_WIDTH + (1 + _WEAK + _STRONG) * self.step + 2 * 2 * _GAP
        self.cell = max(per_cell, views // _OPERATION_COLUMNS)
        self.width = 2 * _MARGIN + max(views, self.cell * _OPERATION_COLUMNS)
        rows = -(-len(OPERATIONS) // _OPERATION_COLUMNS)
        self.row_height = self.step + 2 * _CAPTION + _GAP
        height = 2 * _MARGIN + 320 + SHEET_IMAGES * self.step + rows * self.row_height
        self.page = Image.new("RGB", (self.width, height), "white")
        self.draw = ImageDraw.Draw(self.page)

    def title(self, text: str, below: str) -> None:
        self.text(_MARGIN, self.top, text, 28)
        self.text(_MARGIN, self.top + 38, below, 15, _QUIET)
        self.top += 76

    def heading(self, text: str, below: str) -> None:
        self.draw.line((_MARGIN, self.top, self.width - _MARGIN, self.top), fill=_LINE)
        self.text(_MARGIN, self.top + 14, text, 19)
        self.text(_MARGIN, self.top + 40, below, 14, _QUIET)
        self.top += 70

    def text(self, left: int, top: int, text: str, size: int, ink: str = _INK) -> None:
        self.draw.text((left, top), text, fill=ink, font=ImageFont.load_default(size))

    def name(self, left: int, top: int, text: str) -> None:
        """Write a name beside a picture, cut where it would run into it."""
        font = ImageFont.load_default(14)
        text = text.replace("_", " ")
        shown = text
        while shown and font.getlength(shown) > _NAME_WIDTH - 10:
            text = text[:-1]
            shown = f"{text}..." if text else ""
        self.draw.text((left, top), shown, fill=_INK, font=font)

    def picture(self, left: int, top: int, pixels: Pixels) -> None:
        enlarged = Image.fromarray(pixels).resize((self.tile, self.tile), Image.Resampling.NEAREST)
        self.page.paste(enlarged, (left, top))
        # A thin frame keeps white pictures apart from the white page.
        right, bottom = left + self.tile, top + self.tile
        self.draw.rectangle((left - 1, top - 1, right, bottom), outline=_LINE)

    def finished(self) -> Image.Image:
        """Return the page, cut below the last block."""
        return self.page.crop((0, 0, self.width, self.top + _MARGIN))


def _draw_views(
    sheet: _Sheet, images: Pixels, names: Sequence[str], normalization: Normalization, seed: int
) -> None:
    """Draw a row for each image: its name, itself, its weak views and its strong views."""
    sheet.heading(
        "Views of training images",
        "weak: jitter of brightness and contrast, flip, crop with a black border of 4 pixels; "
        "strong: the same jitter, two of the operations below, a square cut out (gray)",
    )
    batch = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)
    weak = [
        _shown(weak_views(batch, view_key(seed, "sheet", i), normalization), normalization)
        for i in range(_WEAK)
    ]
    strong = [
        _shown(strong_views(batch, view_key(seed, "sheet", i), normalization), normalization)
        for i in range(_STRONG)
    ]
    original_left = _MARGIN + _NAME_WIDTH
    weak_left = original_left + sheet.step + 2 * _GAP
    strong_left = weak_left + _WEAK * sheet.step + 2 * _GAP
    sheet.text(original_left, sheet.top, "original", 14)
    sheet.text(weak_left, sheet.top, "weak views", 14, _WEAK_INK)
    sheet.text(strong_left, sheet.top, "strong views", 14, _STRONG_INK)
    sheet.top += _CAPTION + 2
    for row, (image, name) in enumerate(zip(images, names, strict=True)):
        sheet.name(_MARGIN, sheet.top + sheet.tile // 2 - 9, name)
        sheet.picture(original_left, sheet.top, image)
        for column, views in enumerate(weak):
            sheet.picture(weak_left + column * sheet.step, sheet.top, views[row])
        for column, views in enumerate(strong):
            sheet.picture(strong_left + column * sheet.step, sheet.top, views[row])
        sheet.top += sheet.step
    sheet.top += 2 * _GAP


def _draw_operations(sheet: _Sheet, image: Pixels) -> None:
    """Draw what each operation does to one image at both ends of its range."""
    sheet.heading(
        f"The {len(OPERATIONS)} operations of strong views",
        "each at both ends of its range, on the first image above",
    )
    for number, (name, operation) in enumerate(OPERATIONS.items()):
        row, column = divmod(number, _OPERATION_COLUMNS)
        left = _MARGIN + column * sheet.cell
        top = sheet.top + row * sheet.row_height
        sheet.text(left, top, name.replace("_", " "), 15)
        for place, magnitude in enumerate(operation.extremes() or (None,)):
            across = left + place * sheet.step
            sheet.picture(across, top + _CAPTION + 2, _result(operation, image, magnitude))
            caption = "" if magnitude is None else _caption(name, magnitude)
            sheet.text(across, top + _CAPTION + sheet.tile + 5, caption, 13, _QUIET)
    sheet.top += -(-len(OPERATIONS) // _OPERATION_COLUMNS) * sheet.row_height - _GAP


def _result(operation: Operation, image: Pixels, magnitude: float | None) -> Pixels:
    pixels = torch.from_numpy(np.ascontiguousarray(image)).unsqueeze(0)
    changed: Pixels = operation.function(pixels, torch.tensor([magnitude or 0.0])).numpy()[0]
    return changed


def _caption(name: str, magnitude: float) -> str:
    """Say a magnitude in the unit a person would use."""
    if name == "rotate":
        return f"{magnitude:+.0f}°"
    if name == "posterize":
        return f"{magnitude:.0f} bits"
    if name == "solarize":
        return f"from {magnitude:.0f}"
    if name.startswith("translate"):
        return f"{magnitude:+.1f} of side"
    if name.startswith("shear"):
        return f"{magnitude:+.1f}"
    return f"factor {magnitude:.1f}"


def _shown(views: Tensor, normalization: Normalization) -> Pixels:
    """Undo the normalization for display; cut-outs have the mean color."""
    values = views.permute(0, 2, 3, 1) * torch.tensor(normalization.std)
    values = (values + torch.tensor(normalization.mean)) * 255
    shown: Pixels = values.round().clamp(0, 255).to(torch.uint8).numpy()
    return shown
