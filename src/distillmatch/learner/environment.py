"""The environment: unlabeled images from wherever they come, in bounded memory.

That may be a file, a folder, a pattern such as `camera/**/*.jpg`, a video, a camera, an array, a
list of any of these, a data set or data loader of torch, a webdataset, a queue, or any iterator.
"""

import glob
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
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
    Reader,
    file_at,
    is_array,
    open_images,
    selected,
    unreadable,
)
from distillmatch.learner.video import Camera, Video, is_camera, is_video
from distillmatch.randomness import permutation
from distillmatch.sources.images import ImageFile
from distillmatch.sources.walk import list_files, shown
from distillmatch.terminal import show_progress, without_progress

Place = str | Path | Video
WHAT = "unlabeled images"
KEYS = ("image", "images", "jpg", "jpeg", "png", "webp", "ppm", "bmp", "tif", "tiff", "gif", "avif")
"""Under which a sample with names has its image; of a name with dots, the last part counts."""
AT_ONCE = 8
"""Images of a stream that are held as they came; they may be large."""
MOST_EMPTY = 1000
"""Batches without an image that may come one after another: a stream of them never ends."""
FOR_EXAMPLE = 3
"""Unreadable files that are named."""


@dataclass(frozen=True, eq=False)
class Environment:
    """The unlabeled images that a task is learned with, as the reader gave them.

    `seen` is how many there were to choose from, or came before enough were there; `unreadable`
    of them were files that are no image, of which `problems` names the first; `hidden` files were
    ignored.
    """

    images: NDArray[Any]
    seen: int = 0
    unreadable: int = 0
    problems: tuple[str, ...] = ()
    hidden: int = 0


def look_around(given: Any, reader: Reader, limit: int, seed: int, task: int) -> Environment:
    """Take at most `limit` unlabeled images from whatever was given.

    Of what has a length they are drawn at random, and only those drawn are decoded. A queue, a
    camera, and anything else that can be iterated over, may never end: its first images are taken.
    """
    if isinstance(given, list | tuple) and len(given) == 1 and _is_camera(given[0]):
        (given,) = given
    if given is None:
        return Environment(reader.room(0))
    if _is_camera(given):
        camera = given if isinstance(given, Camera) else Camera(given)
        return _taken(iter(camera), reader, min(limit, camera.frames))
    if isinstance(given, str | Path | Video | list | tuple | np.ndarray | torch.Tensor):
        items, hidden = _opened(given)
        count = len(items)
        if count > limit:
            items = selected(items, _drawn(count, limit, seed, task))
        images, problems = reader.read(items, WHAT)
        named = tuple(problems.values())[:FOR_EXAMPLE]
        return Environment(images, count, len(problems), named, hidden)
    if all(callable(getattr(given, name, None)) for name in ("get", "put")):
        return _taken(_until_none(given), reader, limit)
    if _is_indexed(given):
        chosen = _drawn(len(given), limit, seed, task)
        found = _taken((given[int(number)] for number in chosen), reader, limit)
        return replace(found, seen=max(len(given), found.seen))
    if isinstance(given, Iterable):
        return _taken(iter(given), reader, limit)
    raise LearnerError(
        "unlabeled must be a folder, a pattern, a video, a camera, an array, a list, a data set, "
        f"a queue or an iterator, not {kind_of(given)}"
    )


def _is_camera(given: Any) -> bool:
    return isinstance(given, Camera) or (isinstance(given, str) and is_camera(given))


def _is_indexed(given: Any) -> bool:
    """Return whether any entry can be asked for, as of a map-style data set of torch."""
    return (
        hasattr(given, "__getitem__")
        and hasattr(given, "__len__")
        and not isinstance(given, IterableDataset | Mapping | str | bytes)
    )


def _until_none(queue: Any) -> Iterator[Any]:
    while (item := queue.get()) is not None:
        yield item


def _drawn(count: int, limit: int, seed: int, task: int) -> NDArray[np.int64]:
    """Return the numbers of at most `limit` images, drawn at random and in order."""
    if count <= limit:
        return np.arange(count)
    return np.sort(permutation(count, seed, "environment", task)[:limit])


def _opened(given: Any) -> tuple[Items, int]:
    """Return a sequence of images, and how many hidden files were ignored on the way.

    Folders, patterns and videos in a list stand for all their images.
    """
    if isinstance(given, str | Path | Video):
        return _images_at(given)
    if isinstance(given, torch.Tensor) or is_array(given):
        return open_images(given, WHAT), 0
    items: list[Any] = []
    hidden = 0
    for sample in given:
        if _is_camera(sample):
            raise LearnerError(
                "a camera must be the only source of unlabeled images, not in a list"
            )
        images = _images_in(sample)
        if isinstance(images, str | Path | Video):
            found, ignored = _images_at(images)
            items += found
            hidden += ignored
        else:
            items.extend(open_images(images if _is_batch(images) else [images], WHAT))
    return items, hidden


def _taken(stream: Iterator[Any], reader: Reader, limit: int) -> Environment:
    """Take images, or batches of them, until so many were seen or no more come."""
    # Untouched memory costs nothing: only what is filled is ever there.
    try:
        images = reader.room(limit)
    except (MemoryError, ValueError):
        raise LearnerError(
            f"unlabeled_limit is {limit}, and there is no memory for so many images"
        ) from None
    count = seen = unreadable = empty = 0
    problems: list[str] = []
    with show_progress(f"taking {WHAT}", limit) as progress:
        while seen < limit:
            given = _next_of(stream, min(AT_ONCE, limit - seen))
            if not given:
                break
            before = seen
            for items in given:
                with without_progress():  # of each handful
                    read, wrong = reader.read(open_images(items, WHAT), WHAT)
                kept = read[: limit - count]
                images[count : count + len(kept)] = kept
                count += len(kept)
                seen += len(read) + len(wrong)
                unreadable += len(wrong)
                problems += [*wrong.values()][: FOR_EXAMPLE - len(problems)]
            empty = 0 if seen > before else empty + 1
            if empty > MOST_EMPTY:
                raise LearnerError(f"{WHAT} came as {MOST_EMPTY} empty batches in a row")
            del given, items, read  # before more of them come
            progress(min(seen, limit))
    return Environment(images[:count], seen, unreadable, tuple(problems))


def _next_of(stream: Iterator[Any], most: int) -> list[Any]:
    """Return a stream's next images as a list in a list, then the batch that ended it, if any."""
    singles: list[Any] = []
    for sample in stream:
        images = _images_in(sample)
        if _is_batch(images):
            return [singles, images]
        singles.append(images)
        if len(singles) == most:
            break
    return [singles] if singles else []


def _images_in(sample: Any) -> Any:
    """Return the image or the batch that a sample holds, without what stands beside it.

    That is the image under its name in a mapping, and the first entry of a tuple. A list is a batch
    if all its entries may be images; else it is taken as a tuple is. Bytes are an encoded image.
    """
    if isinstance(sample, Mapping):
        for key in sample:
            if str(key).rpartition(".")[2].lower() in KEYS:
                return _images_in(sample[key])
        raise LearnerError(
            f"{WHAT} with names must have an image under a key such as 'image' or 'jpg', not "
            f"{', '.join(map(repr, sample))}"
        )
    if isinstance(sample, list | tuple):
        if not sample:
            raise LearnerError(f"samples of {WHAT} must hold an image, but one is empty")
        if isinstance(sample, list) and all(map(_may_be_image, sample)):
            return [_images_in(one) for one in sample]
        return _images_in(sample[0])
    if isinstance(sample, bytes):
        return ImageFile(f"{WHAT} that came as bytes", partial(io.BytesIO, sample))
    return sample


def _is_batch(images: Any) -> bool:
    """Return whether these are several images, and not one."""
    return isinstance(images, list) or (
        isinstance(images, np.ndarray | torch.Tensor) and images.ndim == 4
    )


def _may_be_image(one: Any) -> bool:
    if isinstance(one, np.ndarray | torch.Tensor):
        return one.ndim in (2, 3)
    return isinstance(one, str | bytes | Path | Image.Image)


class Paths(NamedTuple):
    """The files at a place, those that are no real files, and how many hidden ones were ignored."""

    files: list[str]
    special: list[str]
    hidden: int


def paths_at(place: Place) -> Paths:
    """Return what a person's file, folder, pattern or video stands for; refuse nothing at all."""
    path = _path_of(place)
    if path.is_dir():
        return _below(path)
    if path.exists() or isinstance(place, Video):
        return Paths([str(path)], [], 0)
    if not glob.has_magic(str(path)):
        raise LearnerError(f"{shown(path)}: expected {WHAT} there, found nothing")
    matches = sorted(glob.iglob(str(path), recursive=True))  # noqa: PTH207  it may be absolute
    if not matches:
        raise LearnerError(f"{shown(path)}: expected {WHAT} that fit this pattern, found none")
    found = [
        _below(one) if one.is_dir() else Paths([str(one)], [], 0) for one in map(Path, matches)
    ]
    # A pattern may find a folder as well as the files in it.
    files = dict.fromkeys(file for paths in found for file in paths.files)
    special = dict.fromkeys(file for paths in found for file in paths.special)
    return Paths([*files], [*special], sum(paths.hidden for paths in found))


def roots_of(place: Place) -> list[Path]:
    """Return the file or folder at a place, or the files that a pattern stands for."""
    path = _path_of(place)
    if path.exists() or not glob.has_magic(str(path)):
        return [path.resolve()]
    return [Path(file).resolve() for file in paths_at(place).files]


def _path_of(place: Place) -> Path:
    return place.path if isinstance(place, Video) else Path(place).expanduser()


def _below(folder: Path) -> Paths:
    listing = list_files(folder)
    if listing.unlisted:
        raise LearnerError(listing.unlisted[0])
    return Paths(listing.files, listing.special, listing.hidden)


def _images_at(place: Place) -> tuple[list[Any], int]:
    """Return the images at a place, none of them decoded, and how many hidden files there were.

    What lies in a folder and is no image is among them: reading it says what is wrong with it.
    """
    path = _path_of(place)
    if isinstance(place, Video) or (path.is_file() and is_video(path)):
        video = place if isinstance(place, Video) else Video(path)
        return [*video.frames()], 0
    paths = paths_at(place)
    items: list[Any] = []
    for file in map(Path, paths.files):
        items += _frames_among(file) if is_video(file) else [file_at(file)]
    return [*items, *(file_at(Path(name)) for name in paths.special)], paths.hidden


def _frames_among(path: Path) -> list[Any]:
    """Return the frames of a video that was found, or something that cannot be read."""
    try:
        return [*Video(path).frames()]
    except DistillMatchError as error:
        return [unreadable(shown(path), str(error).removeprefix(f"{shown(path)}: "))]
