"""The coreset: the only images that a learner may keep from task to task."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distillmatch.randomness import permutation
from distillmatch.sources.dataset import Dataset
from distillmatch.streams.stream import Experience, Stream


def quotas(capacity: int, seen: int) -> list[int]:
    """Return how many images each class may keep: equal shares, the remainder to the newest."""
    each, left = divmod(capacity, seen)
    return [each + (slot >= seen - left) for slot in range(seen)]


@dataclass(frozen=True, eq=False, repr=False)
class Coreset:
    """Stored images by class, in a random order of which each task keeps a shorter beginning."""

    capacity: int
    image_size: int
    by_class: tuple[NDArray[np.uint8], ...] = ()

    def after(self, experience: Experience, seed: int) -> "Coreset":
        """Return the coreset after a task has been learned."""
        kept: list[NDArray[np.uint8]] = list(self.by_class)
        for slot in range(len(kept), experience.seen):
            images = experience.images[experience.labels == slot]
            kept.append(images[permutation(len(images), seed, "coreset", slot)])
        limits = quotas(self.capacity, experience.seen)
        cut = tuple(images[:limit].copy() for images, limit in zip(kept, limits, strict=True))
        return Coreset(self.capacity, self.image_size, cut)

    @property
    def images(self) -> NDArray[np.uint8]:
        """All stored images, class by class."""
        nothing = np.empty((0, self.image_size, self.image_size, 3), np.uint8)
        return np.concatenate([nothing, *self.by_class])

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class slot of each stored image."""
        counts = [len(images) for images in self.by_class]
        return np.repeat(np.arange(len(counts), dtype=np.int64), counts)

    def __len__(self) -> int:
        return sum(len(images) for images in self.by_class)

    def __repr__(self) -> str:
        return f"Coreset({len(self):,} of {self.capacity:,} images, {len(self.by_class)} classes)"

    @property
    def bytes(self) -> int:
        """The bytes that the stored images take."""
        return sum(images.nbytes for images in self.by_class)


def stored_sizes(dataset: Dataset, stream: Stream) -> list[tuple[int, int]]:
    """Return (images, bytes) that the stream's coreset holds after each task."""
    classes = len(dataset.class_names)
    labeled = [
        np.bincount(dataset.train.labels[task.labeled], minlength=classes)[list(task.classes)]
        for task in stream.tasks
    ]
    return coreset_sizes(
        stream.config.coreset, [counts.tolist() for counts in labeled], dataset.image_bytes
    )


def coreset_sizes(
    capacity: int, labeled: Sequence[Sequence[int]], image_bytes: int
) -> list[tuple[int, int]]:
    """Return (images, bytes) stored after each task, from the labeled images of its classes."""
    counts: list[int] = []
    sizes = []
    for task in labeled:
        counts.extend(task)
        counts = [
            min(count, limit)
            for count, limit in zip(counts, quotas(capacity, len(counts)), strict=True)
        ]
        sizes.append((sum(counts), sum(counts) * image_bytes))
    return sizes
