"""What a learner may be given as images: arrays, tensors, PIL images, paths, folders.

Whatever comes becomes squares of RGB bytes: the short side is scaled and the long side cropped, as
`distillmatch.sources.images` does it for files. Numbers are bytes from 0 to 255, or floats from 0
to 1. One image alone goes in a list.
"""

import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from distillmatch.errors import LearnerError, kind_of
from distillmatch.learner.video import VideoFrame, decode_frames
from distillmatch.sources.images import (
    FORMATS,
    BadImageError,
    ImageFile,
    decode_file,
    decode_files,
    square,
)
from distillmatch.sources.walk import list_files, shown
from distillmatch.terminal import show_progress

Pixels = NDArray[np.uint8]
Items = Sequence[Any] | NDArray[Any]
"""Images yet to be read: an array of them, or a list of files, PIL images and arrays."""

CHUNK = 1024
"""Images that are read at once where not all are wanted at once."""
SMALLEST, LARGEST, STEP = 8, 64, 4
"""Between which sides, and in which steps, the first image decides the size of all."""
NO_FILE = "neither a file nor a folder"
"""What is wrong with a pipe, a socket or a device."""
_COLOR, _GRAY = 3, 1


def open_images(given: Any, what: str = "images") -> Items:
    """Return what was given as a sequence that `read_images` reads; nothing is decoded yet."""
    if isinstance(given, str | Path):
        return _from_path(Path(given), what)
    if isinstance(given, torch.Tensor):
        return _batch(array_of(given, what), what, channels_first=True)
    if isinstance(given, np.ndarray) and given.dtype.kind not in "OUS":
        return _batch(given, what, channels_first=False)
    if isinstance(given, list | tuple | np.ndarray):
        return [_item(one, what) for one in given]
    raise LearnerError(
        f"{what} must be an array or tensor, a list of images or paths, or a folder, "
        f"not {kind_of(given)}"
    )


def array_of(tensor: torch.Tensor, what: str) -> NDArray[Any]:
    """Return the values of a tensor, those of short floats such as bfloat16 as float32."""
    if tensor.is_floating_point() and tensor.element_size() < 4:
        tensor = tensor.float()
    try:
        array: NDArray[Any] = tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError):
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise LearnerError(
            f"{what} must be dense tensors of numbers, not {kind} ones of {tensor.dtype} on "
            f"{tensor.device}"
        ) from None
    return array


class Reader(Protocol):
    """Reads opened images as the rows of an array: as pixels, or as features of them."""

    def room(self, count: int) -> NDArray[Any]:
        """Return an array with room for so many rows, as yet without content."""

    def read(self, items: Items, what: str = "images") -> tuple[NDArray[Any], list[str]]:
        """Read those images that can be read, and say what is wrong with the others."""

    def results(self, items: Items, what: str = "images") -> Iterator[NDArray[Any] | str]:
        """Yield the row of each image, or the reason why it cannot be read."""


@dataclass(frozen=True)
class PixelReader:
    """Reads images as uint8 of shape (count, side, side, 3)."""

    side: int

    def room(self, count: int) -> Pixels:
        """Return an array with room for so many images."""
        return np.empty((count, self.side, self.side, 3), np.uint8)

    def read(self, items: Items, what: str = "images") -> tuple[Pixels, list[str]]:
        """Read those images that can be read, and say what is wrong with the others."""
        return read_usable(items, self.side, what)

    def results(self, items: Items, what: str = "images") -> Iterator[Pixels | str]:
        """Yield the pixels of each image, or the reason why it cannot be read."""
        return _results(items, self.side, what)


def read_all(items: Items, reader: Reader, what: str = "images") -> NDArray[Any]:
    """Read all opened images; refuse what is no image."""
    rows, problems = reader.read(items, what)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise LearnerError(f"{problems[0]}{more}")
    return rows


def read_images(items: Items, side: int, what: str = "images") -> Pixels:
    """Read opened images as uint8 of shape (count, side, side, 3); refuse what is no image."""
    return read_all(items, PixelReader(side), what)


def read_usable(items: Items, side: int, what: str = "images") -> tuple[Pixels, list[str]]:
    """Read those opened images that can be read, and say what is wrong with the others."""
    if isinstance(items, np.ndarray):
        return _resized(_as_bytes(items, what), side), []
    images = np.empty((len(items), side, side, 3), np.uint8)
    count, problems = 0, []
    for number, one in enumerate(_results(items, side, what)):
        if isinstance(one, str):
            problems.append(problem(items, number, one, what))
        else:
            images[count] = one
            count += 1
    return images[:count], problems


def problem(items: Items, number: int, reason: str, what: str) -> str:
    """Say which image cannot be read, and why."""
    item = items[number]
    named = isinstance(item, ImageFile | VideoFrame)
    where = item.where if named else f"{what}, number {number + 1}"
    return f"{where}: {reason}"


def _results(items: Items, side: int, what: str) -> Iterator[Pixels | str]:
    """Yield each image of a list as `decoded` does, and show the progress."""
    with show_progress(f"decoding the {what}", len(items)) as progress:
        for done, result in enumerate(decoded(items, side, what), 1):
            yield result
            if done % 100 == 0:
                progress(done)


def decoded(items: Items, side: int, what: str) -> Iterator[Pixels | str]:
    """Yield each image of a list, or the reason why there is none; files are decoded in threads."""
    for kind, run in groupby(items, _kind_of):
        yield from _decoded(kind, list(run), side, what)


def _kind_of(item: Any) -> Any:
    """Return what items have in common that are decoded together."""
    return item.video if isinstance(item, VideoFrame) else type(item) is ImageFile


def _decoded(kind: Any, items: list[Any], side: int, what: str) -> Iterator[Pixels | str]:
    """Yield the results of items of one kind."""
    if kind is True:
        with closing(decode_files(items, side)) as results:
            yield from results
    elif kind is False:
        yield from (_one(item, side, what) for item in items)
    else:
        yield from decode_frames(items, side)


def read_in_chunks(items: Items, reader: Reader) -> Iterator[NDArray[Any]]:
    """Read opened images a chunk at a time, in order."""
    for start in range(0, len(items), CHUNK):
        yield read_all(items[start : start + CHUNK], reader)


def natural_side(items: Items) -> int:
    """Return the side that the first image suggests for all: its short one, within reason."""
    short = next(filter(None, map(_short_side, items)), SMALLEST)
    return min(LARGEST, max(SMALLEST, round(short / STEP) * STEP))


def _short_side(item: Any) -> int | None:
    """Return the short side of an image, if it can be read."""
    if isinstance(item, ImageFile):
        try:
            with item.open() as file, Image.open(file, formats=FORMATS) as image:
                return min(image.size)
        except Exception:  # of whatever kind: reading it will say what is wrong with it
            return None
    return min(item.size if isinstance(item, Image.Image) else item.shape[:2])


def is_folder(given: Any) -> bool:
    """Tell whether a folder was given rather than images."""
    return isinstance(given, str | Path) and Path(given).expanduser().is_dir()


def is_special(path: Path) -> bool:
    """Tell a pipe, a socket or a device, which may keep its reader waiting for ever."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # opening it will say what is wrong with it
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def file_at(path: Path) -> ImageFile:
    """Return the image in a file that was named; what is no file is refused when it is read."""
    file = ImageFile.at(str(path))
    return file._replace(open=_refuse) if is_special(path) else file


def files_below(folder: Path) -> list[ImageFile]:
    """Return all files below a folder, or refuse one of which a part cannot be read."""
    listing = list_files(folder)
    if listing.problems:
        raise LearnerError(listing.problems[0])
    return [ImageFile.at(path) for path in listing.files]


def _from_path(path: Path, what: str) -> list[ImageFile]:
    path = path.expanduser()
    if path.is_dir():
        return files_below(path)
    if not path.exists():
        raise LearnerError(f"{shown(path)}: expected {what} there, found nothing")
    return [file_at(path)]


def _refuse() -> BinaryIO:
    raise OSError(NO_FILE)


def _item(one: Any, what: str) -> Any:
    """Return one image of a list so that it can be read later."""
    if isinstance(one, str | Path):
        return file_at(Path(one).expanduser())
    if isinstance(one, Image.Image | ImageFile):
        return one
    if isinstance(one, torch.Tensor):
        return _single(array_of(one, what), what, channels_first=True)
    if isinstance(one, np.ndarray):
        return _single(one, what, channels_first=False)
    raise LearnerError(
        f"{what} must be arrays, tensors, PIL images or paths, but the list has {kind_of(one)}"
    )


def _one(item: Any, side: int, what: str) -> Pixels | str:
    if isinstance(item, ImageFile):
        return decode_file(item, side)
    if isinstance(item, Image.Image):
        try:
            return square(item.copy(), side)
        except (BadImageError, OSError) as error:
            return str(error)
    pixels: Pixels = _resized(_as_bytes(item[None], what), side)[0]
    return pixels


def _batch(array: NDArray[Any], what: str, *, channels_first: bool) -> NDArray[Any]:
    """Return an array of images as (count, height, width, channels)."""
    if array.ndim == 3 and array.shape[2] == _COLOR:
        raise LearnerError(
            f"{what} must be several, but came as one of shape {array.shape}; put it in a list"
        )
    if array.ndim == 2:
        return array  # vectors of features, which only network 'identity' reads
    if array.ndim not in (3, 4):
        raise LearnerError(
            f"{what} must have the shape (count, height, width, 3), (count, 3, height, width) or "
            f"(count, height, width), not {array.shape}"
        )
    return _channels_last(array, array.ndim == 3, what, channels_first)


def _single(array: NDArray[Any], what: str, *, channels_first: bool) -> NDArray[Any]:
    if array.ndim not in (2, 3):
        raise LearnerError(
            f"{what} in a list must have the shape (height, width, 3), (3, height, width) or "
            f"(height, width), not {array.shape}"
        )
    image: NDArray[Any] = _channels_last(array[None], array.ndim == 2, what, channels_first)[0]
    return image


def _channels_last(
    array: NDArray[Any], gray: bool, what: str, channels_first: bool
) -> NDArray[Any]:
    if gray:
        array = array[..., None]
    else:
        last, first = array.shape[3] in (_COLOR, _GRAY), array.shape[1] in (_COLOR, _GRAY)
        if not (last or first):
            raise LearnerError(
                f"{what} must have 1 or 3 channels (gray, or red, green and blue), not an array of "
                f"shape {array.shape}"
            )
        if first and (channels_first or not last):
            array = array.transpose(0, 2, 3, 1)
    if len(array) and not min(array.shape[1:3]):
        raise LearnerError(f"{what} must have pixels, not an array of shape {array.shape}")
    return array


def _as_bytes(array: NDArray[Any], what: str) -> Pixels:
    """Return numbers as bytes, with three channels."""
    if array.ndim != 4:
        raise LearnerError(
            f"{what} must have the shape (count, height, width, 3), (count, 3, height, width) or "
            f"(count, height, width), not {array.shape}; for vectors of features, name network "
            "'identity'"
        )
    if array.dtype.kind == "f":
        if not (np.isfinite(array).all() and (array >= 0).all() and (array <= 1).all()):
            hint = "; leave out what normalizes them" if array.min() < 0 else ""
            raise LearnerError(
                f"{what} of floats must have values from 0 to 1 and no NaN or inf, not "
                f"{array.min():g} to {array.max():g}{hint}"
            )
        array = np.rint(array * 255)
    elif array.dtype.kind not in "iu":
        raise LearnerError(f"{what} must be whole numbers or floats, not {array.dtype}")
    elif array.dtype != np.uint8 and array.size and (array.min() < 0 or array.max() > 255):
        raise LearnerError(
            f"{what} of whole numbers must have values from 0 to 255, not "
            f"{array.min()} to {array.max()}"
        )
    pixels = array.astype(np.uint8, copy=False)
    return pixels if array.shape[3] == _COLOR else np.repeat(pixels, _COLOR, axis=3)


def _resized(pixels: Pixels, side: int) -> Pixels:
    if pixels.shape[1:3] == (side, side):
        return np.require(pixels, requirements=["C", "W"])  # torch wants memory it may write to
    made = np.empty((len(pixels), side, side, 3), np.uint8)
    for number, one in enumerate(pixels):
        made[number] = square(Image.fromarray(np.ascontiguousarray(one)), side)
    return made
