"""A sheet of small images and words from top to bottom, on Pillow alone."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from distillmatch.errors import ConfigError
from distillmatch.files import write_atomically

Color = tuple[int, int, int]
Pixels = NDArray[np.uint8]

INK: Color = (33, 37, 41)
MUTED: Color = (108, 117, 125)
PAPER: Color = (255, 255, 255)
RULE: Color = (225, 228, 232)
# Colors that stay apart for color-blind readers (after Okabe and Ito).
PAST: Color = (0, 114, 178)
PRESENT: Color = (213, 94, 0)
FUTURE: Color = (150, 150, 150)
DISTRACTOR: Color = (204, 121, 167)
MARGIN, GAP, SIDE = 20, 8, 44
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".pdf")


class Sheet:
    """A white page of columns; what is drawn comes below what was drawn before."""

    def __init__(self, width: int, columns: int = 1) -> None:
        self.width = width
        self.page = Image.new("RGB", (MARGIN + columns * (width + MARGIN), 2000), PAPER)
        self.pen = ImageDraw.Draw(self.page)
        self.x = self.y = self.bottom = MARGIN

    def words(self, *parts: tuple[str, Color] | str, size: int = 13) -> None:
        """Write a line of text, whose parts may have colors, cut where the column ends."""
        x, y = float(self.x), self._place(size + 9)
        for part in parts:
            text, color = (part, INK) if isinstance(part, str) else part
            said = shortened(text, self.x + self.width - x, size)
            self.pen.text((x, y), said, fill=color, font=_font(size))
            x += _font(size).getlength(said) + 14

    def images(
        self,
        images: Sequence[Pixels],
        colors: Sequence[Color],
        captions: Sequence[str] = (),
        side: int = SIDE,
        step: int = SIDE + GAP,
    ) -> None:
        """Draw images in rows, enlarged, each in a frame of its color, captions below them."""
        a_row = self.width // step
        for number, (image, color) in enumerate(zip(images, colors, strict=True)):
            if number % a_row == 0:
                top = self._place(side + GAP + (20 if captions else 0)) + 2
            left = self.x + number % a_row * step + 2
            drawn = Image.fromarray(np.ascontiguousarray(image))
            self.pen.rectangle((left - 2, top - 2, left + side + 1, top + side + 1), color)
            self.page.paste(drawn.resize((side, side), Image.Resampling.NEAREST), (left, top))
            below = shortened(captions[number], step - 4, 11) if captions else ""
            self.pen.text((left, top + side + 3), below, fill=MUTED, font=_font(11))

    def bar(self, name: str, share: float | None, color: Color) -> None:
        """Draw a share in percent as a bar beside its name; None where there is none yet."""
        y, left, room = self._place(28), self.x + 50, self.width - 106
        self.pen.text((self.x, y), name, fill=INK, font=_font(13))
        if share is None:
            self.pen.text((left, y), "none yet", fill=FUTURE, font=_font(13))
            return
        self.pen.rectangle((left, y + 1, left + room, y + 15), RULE)
        self.pen.rectangle((left, y + 1, left + room * share / 100, y + 15), color)
        self.pen.text((left + room + 8, y), f"{share:.0f} %", fill=INK, font=_font(13))

    def line(self) -> None:
        """Draw a thin line across the column."""
        y = self._place(2 * GAP) + GAP
        self.pen.line([(self.x, y), (self.x + self.width, y)], fill=RULE)

    def next_column(self) -> None:
        """Go on at the top of the next column."""
        self.x, self.y = self.x + self.width + MARGIN, MARGIN

    def save(self, path: Path) -> None:
        """Write the page in the format that the file's name ends in."""
        check_picture_name(path)
        buffer, page = BytesIO(), self.page.crop((0, 0, self.page.width, self.bottom + MARGIN))
        page.save(buffer, format=Image.registered_extensions()[path.suffix.lower()])
        write_atomically(path, buffer.getvalue(), "writing the picture")

    def _place(self, height: int) -> int:
        """Return where something of a height begins; the page grows as needed."""
        top, self.y = self.y, self.y + height
        self.bottom = max(self.bottom, self.y)
        if self.bottom > self.page.height - MARGIN:
            grown = Image.new("RGB", (self.page.width, 2 * self.bottom), PAPER)
            grown.paste(self.page)
            self.page, self.pen = grown, ImageDraw.Draw(grown)
        return top


def check_picture_name(path: Path) -> None:
    """Refuse a file name that does not end like a picture, before any work is done."""
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(
            f"{path}: a picture's name must end in one of {', '.join(ENDINGS)}, "
            f"not {path.suffix or 'nothing'!r}"
        )
    Image.init()


def shortened(text: str, width: float, size: int) -> str:
    """Cut text with an ellipsis so that it is at most `width` pixels wide."""
    if _font(size).getlength(text) <= width:
        return text
    while text and _font(size).getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
