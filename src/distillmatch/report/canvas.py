"""A canvas for pictures made of small images and words, on Pillow alone."""

from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from distillmatch.errors import ConfigError
from distillmatch.files import write_atomically

Color = tuple[int, int, int]

INK: Color = (33, 37, 41)
MUTED: Color = (108, 117, 125)
PAPER: Color = (255, 255, 255)
# Three colours that stay apart for colour-blind readers (after Okabe and Ito).
PAST: Color = (0, 114, 178)
PRESENT: Color = (213, 94, 0)
FUTURE: Color = (150, 150, 150)

PICTURE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".pdf")


class Canvas:
    """A white page to put enlarged images, boxes and words on."""

    def __init__(self, width: int, height: int) -> None:
        self.page = Image.new("RGB", (width, height), PAPER)
        self.pen = ImageDraw.Draw(self.page)

    def words(
        self, x: float, y: float, text: str, size: int = 13, color: Color = INK, anchor: str = "la"
    ) -> None:
        """Write text; `anchor` says which point of it lies at (x, y), as in Pillow."""
        self.pen.text((x, y), text, fill=color, font=font(size), anchor=anchor)

    def picture(
        self, x: int, y: int, pixels: NDArray[np.uint8], side: int, frame: Color | None = None
    ) -> None:
        """Put an image of (height, width, 3) at (x, y), enlarged to `side`, in a frame."""
        enlarged = Image.fromarray(np.ascontiguousarray(pixels)).resize(
            (side, side), Image.Resampling.NEAREST
        )
        if frame is not None:
            self.pen.rectangle((x - 2, y - 2, x + side + 1, y + side + 1), fill=frame)
        self.page.paste(enlarged, (x, y))

    def box(self, x: float, y: float, width: float, height: float, color: Color) -> None:
        """Fill a rectangle."""
        self.pen.rectangle((x, y, x + width, y + height), fill=color)

    def line(self, points: list[tuple[float, float]], color: Color = MUTED, width: int = 1) -> None:
        """Draw a line through the points."""
        self.pen.line(points, fill=color, width=width)

    def save(self, path: Path) -> None:
        """Write the page in the format that the file's ending names."""
        save_picture(self.page, path)


def save_picture(page: Image.Image, path: Path) -> None:
    """Write a page in the format that the file's ending names, at once."""
    check_picture_name(path)
    buffer = BytesIO()
    page.save(buffer, format=Image.registered_extensions()[path.suffix.lower()])
    write_atomically(path, buffer.getvalue(), "writing the picture")


def check_picture_name(path: Path) -> None:
    """Refuse a file name whose ending is no picture format, before any work is done."""
    if path.suffix.lower() not in PICTURE_ENDINGS:
        raise ConfigError(
            f"{path}: a picture's name must end in one of {', '.join(PICTURE_ENDINGS)}, "
            f"not {path.suffix or 'nothing'!r}"
        )
    Image.init()


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return the font of all pictures."""
    return ImageFont.load_default(size)


def shortened(text: str, width: float, size: int) -> str:
    """Cut text with an ellipsis so that it is at most `width` pixels wide."""
    if font(size).getlength(text) <= width:
        return text
    while text and font(size).getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"
