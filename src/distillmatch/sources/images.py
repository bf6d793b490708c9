"""Decode any image file into a square of RGB bytes, or say why that fails.

The short side is scaled to the requested side (bicubic, antialiased) and the long side is cropped
evenly, so nothing is stretched. The EXIF orientation is applied. Transparency is laid
over white, 16-bit gray is scaled to eight, and of an animation the first picture counts.
"""

import io
import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from distillmatch.files import open_file
from distillmatch.sources.walk import shown

Image.init()
# Named, because some of Pillow's other formats start programs or accept almost any bytes.
_READABLE = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")
FORMATS = tuple(name for name in _READABLE if name in Image.OPEN)

_SIXTEEN_BIT_GRAY = ("I;16", "I;16B", "I;16L", "I;16N")
_CONVERTIBLE = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
EMPTY = "the file is empty (zero bytes)"
UNKNOWN_FORMAT = "not an image in a format that can be read"
_PIECE_BYTES = 16 * 2**20

Result = NDArray[np.uint8] | str
"""An image, or the reason why it cannot be read."""


class BadImageError(Exception):
    """A file is not a usable image; the message says why."""


class ImageFile(NamedTuple):
    """An image to decode: its name in messages, how to open it, and its path if it has one."""

    where: str
    open: Callable[[], BinaryIO]
    path: str | None = None

    @classmethod
    def at(cls, path: str) -> "ImageFile":
        """Return the image in the file at `path`."""
        return cls(shown(path), partial(open_file, Path(path)), path)


def decode_image(file: BinaryIO, side: int) -> NDArray[np.uint8]:
    """Return one image as uint8 of shape (side, side, 3), or raise `BadImageError`."""
    if file.seek(0, io.SEEK_END) == 0:
        raise BadImageError(EMPTY)
    file.seek(0)
    try:
        with Image.open(file, formats=FORMATS) as image:
            return square(image, side)
    except BadImageError:
        raise
    except UnidentifiedImageError:
        raise BadImageError(UNKNOWN_FORMAT) from None
    except Image.DecompressionBombError:
        raise BadImageError(_too_large()) from None
    except Exception as error:  # Pillow lets all kinds of exceptions through for damaged files
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadImageError(f"the image is damaged ({shown(reason)})") from None


def decode_file(file: ImageFile | str, side: int) -> Result:
    """Return the image in a file or at a path, or the reason why it cannot be read."""
    file = ImageFile.at(file) if isinstance(file, str) else file
    try:
        with file.open() as opened:
            return decode_image(opened, side)
    except BadImageError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)


def problem_with(file: ImageFile) -> str | None:
    """Return why a file is not an image, judged by its first bytes, or None."""
    try:
        with file.open() as opened:
            if not opened.read(1):
                return EMPTY
            with Image.open(opened, formats=FORMATS):
                return None
    except UnidentifiedImageError:
        return UNKNOWN_FORMAT
    except OSError as error:
        return error.strerror or str(error)
    except Exception:  # decoding the file will say what is wrong with it
        return None


def worker_count() -> int:
    """Return how many threads decode images at once."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(16, max(2, cores or 1))


def decode_files(files: Sequence[ImageFile | str], side: int) -> Generator[Result]:
    """Yield the results of all files, or paths, in order; close the generator to stop.

    Threads decode a limited number ahead, so that memory does not grow with the number of files.
    """
    most_ahead = 2 * min(1024, max(16, _PIECE_BYTES // (side * side * 3)))
    pool = ThreadPoolExecutor(worker_count())
    ahead: deque[Future[Result]] = deque()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the result says what is wrong with a file
            for file in files:
                if len(ahead) == most_ahead:
                    yield ahead.popleft().result()
                ahead.append(pool.submit(decode_file, file, side))
            for result in ahead:
                yield result.result()
    finally:
        pool.shutdown(cancel_futures=True)


def square(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """Return an opened image as uint8 of shape (side, side, 3), or raise `BadImageError`."""
    whole = upright(image, side)
    fitted = ImageOps.fit(whole, (side, side), method=Image.Resampling.BICUBIC)
    return np.array(fitted, dtype=np.uint8)


def upright(image: Image.Image, side: int) -> Image.Image:
    """Return an opened image in RGB and upright, large enough for `side`, or raise."""
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        raise BadImageError(_too_large())
    image.draft(None, (2 * side, 2 * side))  # a JPEG can be decoded at half size and less, faster
    image.load()
    with suppress(Exception):  # damaged EXIF data do not make the picture unusable
        ImageOps.exif_transpose(image, in_place=True)
    return _to_rgb(image)


def _to_rgb(image: Image.Image) -> Image.Image:
    # Pillow has called 16-bit gray "I" in these two formats.
    sixteen_bit = image.mode == "I" and image.format in ("PNG", "PPM")
    if sixteen_bit or image.mode in _SIXTEEN_BIT_GRAY:
        gray = (np.asarray(image).astype(np.uint32) + 128) // 257
        return Image.fromarray(gray.astype(np.uint8)).convert("RGB")
    if image.mode not in _CONVERTIBLE:
        raise BadImageError(f"colors of mode {image.mode} cannot be turned into RGB faithfully")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _too_large() -> str:
    return f"more than {Image.MAX_IMAGE_PIXELS:,} pixels, which is not taken for a picture"
