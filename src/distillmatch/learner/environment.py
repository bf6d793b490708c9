"""The environment: unlabeled images, however many come, in bounded memory."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from distillmatch.errors import LearnerError, kind_of
from distillmatch.learner.inputs import Items, Reader, open_images
from distillmatch.learner.places import WHAT, images_at
from distillmatch.learner.samples import images_in, is_batch, is_queue, until_none
from distillmatch.learner.video import Camera, Video, is_camera
from distillmatch.randomness import permutation
from distillmatch.terminal import show_progress, without_progress

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

    Of a folder, a list, an array or a data set they are drawn at random, and only those drawn are
    decoded. A queue, a camera, and anything else that can be iterated over, may never end: its
    first images are taken.
    """
    if isinstance(given, list | tuple) and len(given) == 1 and _is_stream(given[0]):
        (given,) = given
    if given is None:
        return Environment(reader.room(0))
    if isinstance(given, str) and is_camera(given):
        given = Camera(given)
    if isinstance(given, Camera):
        limit = min(limit, given.frames)
    if isinstance(given, str | Path | Video | list | tuple | np.ndarray | torch.Tensor):
        items, hidden = _opened(given)
        return _chosen(items, hidden, reader, limit, seed, task)
    if is_queue(given):
        return _first(until_none(given), reader, limit)
    if _is_indexed(given):
        chosen = _drawn(len(given), limit, seed, task)
        found = _first((given[int(number)] for number in chosen), reader, limit)
        return replace(found, seen=max(len(given), found.seen))
    if isinstance(given, Iterable):
        return _first(iter(given), reader, limit)
    raise LearnerError(
        "unlabeled must be a folder, a pattern, a video, a camera, an array, a list, a data set, "
        f"a queue or an iterator, not {kind_of(given)}"
    )


def _is_stream(given: Any) -> bool:
    return isinstance(given, Camera) or (isinstance(given, str) and is_camera(given))


def _is_indexed(given: Any) -> bool:
    """Tell what has a length and can be asked for any entry, as a map-style data set of torch."""
    return (
        hasattr(given, "__getitem__")
        and hasattr(given, "__len__")
        and not isinstance(given, IterableDataset | Mapping | str | bytes)
    )


def _opened(given: Any) -> tuple[Items, int]:
    """Return a sequence of images, and how many hidden files were ignored on the way.

    Folders, patterns and videos in a list stand for all their images.
    """
    if isinstance(given, str | Path | Video):
        return images_at(given)
    if isinstance(given, torch.Tensor) or (
        isinstance(given, np.ndarray) and given.dtype.kind not in "OU"
    ):
        return open_images(given, WHAT), 0
    items: list[Any] = []
    hidden = 0
    for sample in given:
        if _is_stream(sample):
            raise LearnerError(
                "a camera must be the only source of unlabeled images, not in a list"
            )
        images = images_in(sample, WHAT)
        if isinstance(images, str | Path | Video):
            found, ignored = images_at(images)
            items.extend(found)
            hidden += ignored
        else:
            items.extend(open_images(images if is_batch(images) else [images], WHAT))
    return items, hidden


def _drawn(count: int, limit: int, seed: int, task: int) -> NDArray[np.int64]:
    """Return the numbers of at most `limit` images, drawn at random and in order."""
    if count <= limit:
        return np.arange(count)
    return np.sort(permutation(count, seed, "environment", task)[:limit])


def _chosen(
    items: Items, hidden: int, reader: Reader, limit: int, seed: int, task: int
) -> Environment:
    count = len(items)
    if count > limit:
        chosen = _drawn(count, limit, seed, task)
        items = items[chosen] if isinstance(items, np.ndarray) else [items[i] for i in chosen]
    images, problems = reader.read(items, WHAT)
    return Environment(images, count, len(problems), tuple(problems[:FOR_EXAMPLE]), hidden)


def _first(stream: Iterator[Any], reader: Reader, limit: int) -> Environment:
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
                problems += wrong[: FOR_EXAMPLE - len(problems)]
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
        images = images_in(sample, WHAT)
        if is_batch(images):
            return [singles, images]
        singles.append(images)
        if len(singles) == most:
            break
    return [singles] if singles else []
