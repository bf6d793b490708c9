"""The environment: unlabeled images, however many come, in bounded memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distillmatch.errors import LearnerError, kind_of
from distillmatch.learner.inputs import (
    Items,
    Reader,
    file_at,
    files_below,
    open_images,
)
from distillmatch.learner.samples import images_in, is_batch, is_queue, until_none
from distillmatch.randomness import permutation
from distillmatch.sources.images import ImageFile
from distillmatch.sources.walk import shown

WHAT = "unlabeled images"
AT_ONCE = 8
"""Images of a stream that are held as they came; they may be large."""
MOST_EMPTY = 1000
"""Batches without an image that may come one after another: a stream of them never ends."""


@dataclass(frozen=True, eq=False)
class Environment:
    """The unlabeled images that a task is learned with, as the reader gave them.

    `seen` is how many there were to choose from, or came before enough were there; `unreadable`
    of them were files that are no image.
    """

    images: NDArray[Any]
    seen: int = 0
    unreadable: int = 0


def look_around(given: Any, reader: Reader, limit: int, seed: int, task: int) -> Environment:
    """Take at most `limit` unlabeled images from whatever was given.

    Of a folder, a list or an array they are drawn at random, and only those drawn are decoded.
    A queue, and anything else that can be iterated over, may never end: its first images are taken.
    """
    if given is None:
        return Environment(reader.room(0))
    if isinstance(given, str | Path | list | tuple | np.ndarray | torch.Tensor):
        return _chosen(_opened(given), reader, limit, seed, task)
    if is_queue(given):
        return _first(until_none(given), reader, limit)
    if isinstance(given, Iterable):
        return _first(iter(given), reader, limit)
    raise LearnerError(
        "unlabeled must be a folder, an array, a list, a queue or an iterator, not "
        f"{kind_of(given)}"
    )


def _opened(given: Any) -> Items:
    """Return a sequence of images; folders in a list stand for all images below them."""
    if isinstance(given, str | Path):
        return _files_at(given)
    if isinstance(given, torch.Tensor) or (
        isinstance(given, np.ndarray) and given.dtype.kind not in "OU"
    ):
        return open_images(given, WHAT)
    items: list[Any] = []
    for sample in given:
        images = images_in(sample, WHAT)
        if isinstance(images, str | Path):
            items.extend(_files_at(images))
        else:
            items.extend(open_images(images if is_batch(images) else [images], WHAT))
    return items


def _files_at(place: str | Path) -> list[ImageFile]:
    path = Path(place).expanduser()
    if not path.exists():
        raise LearnerError(f"{shown(path)}: expected {WHAT} there, found nothing")
    return files_below(path, with_strangers=True) if path.is_dir() else [file_at(path)]


def _chosen(items: Items, reader: Reader, limit: int, seed: int, task: int) -> Environment:
    count = len(items)
    if count > limit:
        chosen = np.sort(permutation(count, seed, "environment", task)[:limit])
        items = items[chosen] if isinstance(items, np.ndarray) else [items[i] for i in chosen]
    images, problems = reader.read(items, WHAT)
    return Environment(images, count, len(problems))


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
    while seen < limit:
        given = _next_of(stream, min(AT_ONCE, limit - seen))
        if not given:
            break
        before = seen
        for items in given:
            read, problems = reader.read(open_images(items, WHAT), WHAT)
            kept = read[: limit - count]
            images[count : count + len(kept)] = kept
            count += len(kept)
            seen += len(read) + len(problems)
            unreadable += len(problems)
        empty = 0 if seen > before else empty + 1
        if empty > MOST_EMPTY:
            raise LearnerError(f"{WHAT} came as {MOST_EMPTY} empty batches in a row")
        del given, items, read  # before more of them come
    return Environment(images[:count], seen, unreadable)


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
