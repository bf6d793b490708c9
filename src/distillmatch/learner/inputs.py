"""What a learner may be given as images: arrays, tensors, PIL images, paths, folders.

All of them become squares of RGB bytes: the short side is scaled and the long side cropped, as
`distillmatch.sources.images` does it for files. Numbers are bytes from 0 to 255, or floats from 0
to 1. One image alone goes in a list.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from distillmatch.errors import LearnerError, first_of, kind_of
from distillmatch.learner.video import Video, VideoFrame, decode_frames
from distillmatch.sources.images import FORMATS, BadImageError, ImageFile, decode_files, square
from distillmatch.sources.walk import list_files, shown
from distillmatch.terminal import show_progress

Pixels = NDArray[np.uint8]
Items = Sequence[Any] | NDArray[Any]
"""Images yet to be read: files, video frames, PIL images, arrays (height, width, channels), or
vectors of features.
"""

CHUNK = 1024
"""Images that are read at once where not all are wanted at once."""
SMALLEST, LARGEST, STEP = 8, 64, 4
"""Range and step of the side that the first image suggests for all."""
_CHANNELS = (1, 3)


def open_images(given: Any, what: str = "images") -> Items:
    """Return what was given as a sequence that a reader reads; nothing is decoded yet."""
    if isinstance(given, str | Path):
        path = Path(given).expanduser()
        if path.is_dir():
            return _files_below(path)
        if not path.exists():
            raise LearnerError(f"{shown(path)}: expected {what} there, found nothing")
        return [ImageFile.at(str(path))]
    if is_array(given):
        array = array_of(given)
        if array.ndim == 3 and array.shape[2] == 3:
            raise _no_images(what, array, "; a single image goes in a list")
        if array.ndim != 2:  # not vectors of features, which only network 'identity' reads
            array = _channels_last(array, what, isinstance(given, torch.Tensor))
        return list(array)
    if isinstance(given, list | tuple | np.ndarray):
        return [_opened(one, what) for one in given]
    raise LearnerError(
        f"{what} must be an array or tensor, a list of images or paths, or a folder, "
        f"not {kind_of(given)}"
    )


class Reader(ABC):
    """Reads opened images as the rows of an array: as pixels, or as features of them."""

    @abstractmethod
    def room(self, count: int) -> NDArray[Any]:
        """Return an array with room for so many rows."""

    @abstractmethod
    def results(self, items: Items, what: str = "images") -> Iterator[NDArray[Any] | str]:
        """Yield the row of each image, or the reason why it cannot be read."""

    def read(self, items: Items, what: str = "images") -> tuple[NDArray[Any], dict[int, str]]:
        """Read the images that can be read; return the problems of the others by number."""
        rows, count = self.room(len(items)), 0
        problems: dict[int, str] = {}
        for number, result in enumerate(self.results(items, what)):
            if isinstance(result, str):
                where = getattr(items[number], "where", f"{what}, number {number + 1}")
                problems[number] = f"{where}: {result}"
            else:
                rows[count] = result
                count += 1
        return rows[:count], problems


@dataclass(frozen=True)
class PixelReader(Reader):
    """Reads images as uint8 of shape (count, side, side, 3)."""

    side: int

    def room(self, count: int) -> Pixels:
        """Return an array with room for so many images."""
        return np.empty((count, self.side, self.side, 3), np.uint8)

    def results(self, items: Items, what: str = "images") -> Iterator[Pixels | str]:
        """Yield the pixels of each image, or the reason why it cannot be read."""
        with show_progress(f"decoding the {what}", len(items)) as progress:
            for done, result in enumerate(decoded(items, self.side, what), 1):
                yield result
                progress(done)


def read_all(items: Items, reader: Reader, what: str = "images") -> NDArray[Any]:
    """Read all opened images; refuse what is no image."""
    rows, problems = reader.read(items, what)
    if problems:
        raise LearnerError(first_of([*problems.values()]))
    return rows


def read_in_chunks(items: Items, reader: Reader) -> Iterator[NDArray[Any]]:
    """Read opened images a chunk at a time, in order; the first chunk is empty."""
    yield reader.room(0)
    for start in range(0, len(items), CHUNK):
        yield read_all(items[start : start + CHUNK], reader)


def decoded(items: Items, side: int, what: str) -> Iterator[Pixels | str]:
    """Yield each image as a square, or the reason why there is none; threads decode files."""
    for kind, run in groupby(
        items, lambda item: item.video if isinstance(item, VideoFrame) else type(item)
    ):
        if kind is ImageFile:
            with closing(decode_files(list(run), side)) as results:
                yield from results
        else:
            for item in decode_frames(list(run)) if isinstance(kind, Video) else run:
                yield item if isinstance(item, str) else _decoded(item, side, what)


def _decoded(item: Any, side: int, what: str) -> Pixels | str:
    """Return an image or an array as a square of bytes with three channels."""
    if isinstance(item, Image.Image):
        try:
            return square(item.copy(), side)
        except (BadImageError, OSError) as error:
            return str(error)
    if item.ndim != 3:
        raise _no_images(what, item[None], "; for vectors of features, name network 'identity'")
    white = {"f": 1, "i": 255, "u": 255}.get(item.dtype.kind)
    if white is None or not (item.min(initial=0) >= 0 and item.max(initial=0) <= white):
        raise _no_images(what, item[None])
    levels = np.rint(item * 255) if white == 1 else item
    pixels: Pixels = levels.astype(np.uint8, copy=False)
    if pixels.shape[2] != 3:
        pixels = np.repeat(pixels, 3, axis=2)
    if pixels.shape[:2] == (side, side):
        return pixels
    return square(Image.fromarray(np.ascontiguousarray(pixels)), side)


def natural_side(items: Items) -> int:
    """Return the side that the first readable image suggests: its short one, within a range."""
    short = next(filter(None, map(_short_side, items)), SMALLEST)
    return min(LARGEST, max(SMALLEST, round(short / STEP) * STEP))


def _short_side(item: Any) -> int | None:
    if isinstance(item, ImageFile):
        try:
            with item.open() as file, Image.open(file, formats=FORMATS) as image:
                return min(image.size)
        except Exception:  # reading it will say what is wrong with it
            return None
    return min(item.size if isinstance(item, Image.Image) else item.shape[:2])


def unreadable(where: str, problem: str) -> ImageFile:
    """Return what stands for an image that cannot be read, for this reason."""

    def refuse() -> BinaryIO:
        raise OSError(problem)

    return ImageFile(where, refuse)


def _files_below(folder: Path) -> list[ImageFile]:
    """Return all files below a folder, or refuse one of which a part cannot be read."""
    listing = list_files(folder)
    if listing.problems:
        raise LearnerError(listing.problems[0])
    return [ImageFile.at(path) for path in listing.files]


def is_array(given: Any) -> bool:
    """Return whether this is a tensor or an array of numbers, not of paths or other objects."""
    if isinstance(given, np.ndarray):
        return given.dtype.kind not in "OUS"
    return isinstance(given, torch.Tensor)


def array_of(given: Any) -> NDArray[Any]:
    """Return an array or the values of a tensor, those of short floats (bfloat16) as float32."""
    if not isinstance(given, torch.Tensor):
        return np.asarray(given)
    short = given.is_floating_point() and given.element_size() < 4
    array: NDArray[Any] = (given.float() if short else given).numpy(force=True)
    return array


def _opened(one: Any, what: str) -> Any:
    """Return one image of a list so that it can be read later."""
    if isinstance(one, str | Path):
        return ImageFile.at(str(Path(one).expanduser()))
    if isinstance(one, Image.Image | ImageFile | VideoFrame):
        return one
    if isinstance(one, np.ndarray | torch.Tensor):
        return _channels_last(array_of(one)[None], what, isinstance(one, torch.Tensor))[0]
    raise LearnerError(
        f"{what} must be arrays, tensors, PIL images or paths, but the list has {kind_of(one)}"
    )


def _channels_last(array: NDArray[Any], what: str, channels_first: bool) -> NDArray[Any]:
    """Return (count, height, width, channels); `channels_first` decides where both are possible."""
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim == 4 and (array.size or not len(array)):
        first, last = array.shape[1] in _CHANNELS, array.shape[3] in _CHANNELS
        if first and (channels_first or not last):
            return array.transpose(0, 2, 3, 1)
        if last:
            return array
    raise _no_images(what, array)


def _no_images(what: str, array: NDArray[Any], hint: str = "") -> LearnerError:
    """Say what arrays of images must be, and what came instead."""
    came = f"{array.dtype} of shape {array.shape}"
    if array.size and array.dtype.kind in "iuf":
        came = f"{came} with values from {array.min():g} to {array.max():g}"
    return LearnerError(
        f"{what} must have the shape (count, height, width, 3), (count, 3, height, width) or "
        f"(count, height, width), as bytes from 0 to 255 or floats from 0 to 1 (not normalized); "
        f"this is {came}{hint}"
    )
