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
RULE: Color = (225, 228, 232)
# Three colors that stay apart for color-blind readers (after Okabe and Ito).
PAST: Color = (0, 114, 178)
PRESENT: Color = (213, 94, 0)
FUTURE: Color = (150, 150, 150)

MARGIN = 20

PICTURE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".pdf")


class Canvas:
    """A white page to put enlarged images, boxes and words on."""

    def __init__(self, width: int, height: int) -> None:
        self.page = Image.new("RGB", (width, height), PAPER)
        self.pen = ImageDraw.Draw(self.page)

    def words(
        self, x: float, y: float, text: str, size: int = 13, color: Color = INK, anchor: str = "la"
    ) -> float:
        """Write text and return where it ends; `anchor` names its point at (x, y), as in Pillow."""
        self.pen.text((x, y), text, fill=color, font=font(size), anchor=anchor)
        return x + font(size).getlength(text)

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
        """Write the page in the format that the file's name ends in."""
        check_picture_name(path)
        buffer = BytesIO()
        self.page.save(buffer, format=Image.registered_extensions()[path.suffix.lower()])
        write_atomically(path, buffer.getvalue(), "writing the picture")


def check_picture_name(path: Path) -> None:
    """Refuse a file name that does not end like a picture, before any work is done."""
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
