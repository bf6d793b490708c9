"""The coreset: the only images that a learner may keep from task to task."""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from distillmatch.randomness import permutation
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
        """Return the coreset after a task has been learned.

        Of a class that came back, stored and new images are mixed.
        """
        kept: list[NDArray[np.uint8]] = []
        for slot in range(experience.seen):
            images = experience.images[experience.labels == slot]
            if slot >= len(self.by_class):
                images = images[permutation(len(images), seed, "coreset", slot)]
            elif len(images):
                images = np.concatenate([self.by_class[slot], images])
                images = images[permutation(len(images), seed, "returned", experience.task, slot)]
            else:
                images = self.by_class[slot]
            kept.append(images)
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


def stored_sizes(stream: Stream) -> list[tuple[int, int]]:
    """Return (images, bytes) that the stream's coreset holds after each task."""
    counts = np.zeros(0, np.int64)
    sizes = []
    for task, seen in zip(stream.tasks, accumulate(stream.task_sizes), strict=True):
        labels = stream.slots(stream.dataset.train.labels[task.labeled])
        stored = np.pad(counts, (0, seen - len(counts)))
        given = stored + np.bincount(labels, minlength=seen)
        counts = np.minimum(given, quotas(stream.config.coreset, seen))
        images = int(counts.sum())
        sizes.append((images, images * stream.dataset.image_bytes))
    return sizes
