"""The environment: unlabeled images from any source, in bounded memory.

That may be a file, a folder, a pattern such as `camera/**/*.jpg`, a video, a camera, an array, a
list of any of these, a data set or data loader of torch, a webdataset, or any iterator.
"""

import glob
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import IterableDataset

from distillmatch.errors import DistillMatchError, LearnerError, kind_of
from distillmatch.learner.inputs import (
    Items,
    Pixels,
    Reader,
    decoded,
    is_array,
    open_images,
    unreadable,
)
from distillmatch.learner.video import Camera, Video, VideoFrame, is_camera, is_video
from distillmatch.randomness import permutation
from distillmatch.sources.images import ImageFile
from distillmatch.sources.walk import list_files, shown
from distillmatch.terminal import show_progress, without_progress

Place = str | Path | Video
WHAT = "unlabeled images"
KEYS = ("image", "images", "jpg", "jpeg", "png", "webp", "ppm", "bmp", "tif", "tiff", "gif", "avif")
"""Keys of a sample's image in a mapping; of a key with dots, the last part counts."""
AT_ONCE = 8
"""Images of a stream that are held as they came; they may be large."""
FOR_EXAMPLE = 3
"""Unreadable files that are named."""
PICTURE_SIDE = 96


@dataclass(frozen=True, eq=False)
class Environment:
    """The unlabeled images of a task, as the reader gave them.

    `seen` is how many there were to choose from, or came before enough were there; `unreadable`
    of them were files that are no image, of which `problems` names the first; `hidden` files were
    ignored. `items` are the images as they were opened, but not those of a stream.
    """

    images: NDArray[Any]
    seen: int = 0
    unreadable: int = 0
    problems: tuple[str, ...] = ()
    hidden: int = 0
    items: Items = ()

    def picture(self, number: int) -> Pixels | None:
        """Return a small picture of an image; none of a stream or a video is decoded again."""
        if not len(self.items) or isinstance(self.items[number], VideoFrame):
            return None
        (found,) = decoded([self.items[number]], PICTURE_SIDE, WHAT)
        return None if isinstance(found, str) else found


def read_unlabeled(given: Any, reader: Reader, limit: int, seed: int, task: int) -> Environment:
    """Take at most `limit` unlabeled images from a source.

    From what has a length they are drawn at random, and only those drawn are decoded. A camera, and
    anything else that can be iterated over, may never end: its first images are taken.
    """
    if isinstance(given, list | tuple) and len(given) == 1 and _is_camera(given[0]):
        (given,) = given
    if given is None:
        return Environment(reader.room(0))
    if _is_camera(given):
        camera = given if isinstance(given, Camera) else Camera(given)
        return _taken(camera, reader, min(limit, camera.frames))
    if isinstance(given, str | Path | Video | list | tuple) or is_array(given):
        items, hidden = _opened(given)
        drawn = [items[number] for number in _drawn(len(items), limit, seed, task)]
        images, problems = reader.read(drawn, WHAT)
        named = tuple(problems.values())[:FOR_EXAMPLE]
        readable = [item for number, item in enumerate(drawn) if number not in problems]
        return Environment(images, len(items), len(problems), named, hidden, readable)
    indexed = hasattr(given, "__getitem__") and hasattr(given, "__len__")
    if indexed and not isinstance(given, IterableDataset | Mapping):  # a map-style data set
        numbers = _drawn(len(given), limit, seed, task)
        found = _taken((given[number] for number in numbers), reader, limit)
        return replace(found, seen=max(len(given), found.seen))
    if isinstance(given, Iterable):
        return _taken(given, reader, limit)
    raise LearnerError(
        "unlabeled must be a folder, a pattern, a video, a camera, an array, a list, a data set, "
        f"or an iterator, not {kind_of(given)}"
    )


def _is_camera(given: Any) -> bool:
    return isinstance(given, Camera) or (isinstance(given, str) and is_camera(given))


def _drawn(count: int, limit: int, seed: int, task: int) -> Sequence[int]:
    """Return the numbers of at most `limit` images, drawn at random and in order."""
    if count <= limit:
        return range(count)
    return sorted(permutation(count, seed, "environment", task)[:limit].tolist())


def _opened(given: Any) -> tuple[Items, int]:
    """Return a sequence of images, and how many hidden files were ignored on the way.

    Folders, patterns and videos in a list stand for all their images.
    """
    if isinstance(given, str | Path | Video):
        return _images_at(given)
    if is_array(given):
        return open_images(given, WHAT), 0
    items: list[Any] = []
    hidden = 0
    for image in chain.from_iterable(map(_images_in, given)):
        if _is_camera(image):
            raise LearnerError(
                "a camera must be the only source of unlabeled images, not in a list"
            )
        if isinstance(image, str | Path | Video):
            found, ignored = _images_at(image)
            items += found
            hidden += ignored
        else:
            items.extend(open_images([image], WHAT))
    return items, hidden


def _taken(given: Iterable[Any], reader: Reader, limit: int) -> Environment:
    """Take images, or batches of them, until so many were seen or no more come."""
    images, count, seen = reader.room(limit), 0, 0  # untouched memory costs nothing
    problems: list[str] = []
    stream = iter(given)
    with show_progress(f"taking {WHAT}", limit) as progress:
        while seen < limit and (some := _next_of(stream, min(AT_ONCE, limit - seen))):
            with without_progress():  # of each handful
                read, wrong = reader.read(open_images(some, WHAT), WHAT)
            kept = read[: limit - count]
            images[count : count + len(kept)] = kept
            count += len(kept)
            seen += len(some)
            problems += wrong.values()
            progress(min(seen, limit))
            del some, read  # before more of them come
    return Environment(images[:count], seen, len(problems), tuple(problems[:FOR_EXAMPLE]))


def _next_of(stream: Iterator[Any], enough: int) -> list[Any]:
    """Return a stream's next images: enough of them, and what a last batch has beyond that."""
    found: list[Any] = []
    for sample in stream:
        found += _images_in(sample)
        if len(found) >= enough:
            break
    return found


def _images_in(sample: Any) -> Iterator[Any]:
    """Yield the images that a sample holds, without what stands beside them.

    That is the image under its key in a mapping, and the first entry of a tuple. A list is a batch
    if all its entries may be images; else it is taken as a tuple is. Bytes are an encoded image.
    """
    if isinstance(sample, Mapping):
        keys = [key for key in sample if str(key).rpartition(".")[2].lower() in KEYS]
        if not keys:
            raise LearnerError(
                f"{WHAT} with names must have an image under a key such as 'image' or 'jpg', not "
                f"{', '.join(map(repr, sample))}"
            )
        yield from _images_in(sample[keys[0]])
    elif isinstance(sample, list) and sample and all(map(_may_be_image, sample)):
        yield from chain.from_iterable(map(_images_in, sample))
    elif isinstance(sample, list | tuple):
        yield from chain.from_iterable(map(_images_in, sample[:1]))
    elif isinstance(sample, bytes):
        yield ImageFile(f"{WHAT} that came as bytes", partial(io.BytesIO, sample))
    elif isinstance(sample, np.ndarray | torch.Tensor) and sample.ndim == 4:
        yield from sample
    else:
        yield sample


def _may_be_image(one: Any) -> bool:
    if isinstance(one, np.ndarray | torch.Tensor):
        return one.ndim in (2, 3)
    return isinstance(one, str | bytes | Path | Image.Image)


class Paths(NamedTuple):
    """The files at a place, the entries that are no real files, and the number of hidden ones."""

    files: list[str]
    special: list[str]
    hidden: int


def paths_at(place: Place) -> Paths:
    """Return the files that a file, folder, pattern or video stands for; refuse a place of none."""
    path = _path_of(place)
    if path.exists() or isinstance(place, Video):
        return _below(path)
    if not glob.has_magic(str(path)):
        raise LearnerError(f"{shown(path)}: expected {WHAT} there, found nothing")
    matches = sorted(glob.iglob(str(path), recursive=True))  # noqa: PTH207  it may be absolute
    if not matches:
        raise LearnerError(f"{shown(path)}: expected {WHAT} that fit this pattern, found none")
    found = [_below(Path(one)) for one in matches]
    # A pattern may find a folder as well as the files in it.
    files = dict.fromkeys(chain.from_iterable(paths.files for paths in found))
    special = dict.fromkeys(chain.from_iterable(paths.special for paths in found))
    return Paths([*files], [*special], sum(paths.hidden for paths in found))


def roots_of(place: Place) -> list[Path]:
    """Return the file or folder at a place, or the files that a pattern stands for."""
    path = _path_of(place)
    if path.exists() or not glob.has_magic(str(path)):
        return [path.resolve()]
    return [Path(file).resolve() for file in paths_at(place).files]


def _path_of(place: Place) -> Path:
    return place.path if isinstance(place, Video) else Path(place).expanduser()


def _below(path: Path) -> Paths:
    """Return a file, or what lies below a folder."""
    if not path.is_dir():
        return Paths([str(path)], [], 0)
    listing = list_files(path)
    if listing.unlisted:
        raise LearnerError(listing.unlisted[0])
    return Paths(listing.files, listing.special, listing.hidden)


def _images_at(place: Place) -> tuple[list[Any], int]:
    """Return the images at a place, none of them decoded, and how many hidden files there were.

    What lies in a folder and is no image is among them: reading it says what is wrong with it.
    """
    path = _path_of(place)
    if isinstance(place, Video) or (path.is_file() and is_video(path)):
        return [*(place if isinstance(place, Video) else Video(path)).frames()], 0
    paths = paths_at(place)
    items: list[Any] = []
    for file in map(Path, paths.files):
        items += _frames_among(file) if is_video(file) else [ImageFile.at(str(file))]
    return [*items, *map(ImageFile.at, paths.special)], paths.hidden


def _frames_among(path: Path) -> list[Any]:
    """Return the frames of a video that was found, or something that cannot be read."""
    try:
        return [*Video(path).frames()]
    except DistillMatchError as error:
        return [unreadable(shown(path), str(error).removeprefix(f"{shown(path)}: "))]
