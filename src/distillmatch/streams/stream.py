"""The stream: a semi-supervised continual setting as index lists, built from a source by a seed."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distillmatch.config import StreamConfig
from distillmatch.errors import StreamError
from distillmatch.randomness import permutation
from distillmatch.sources.dataset import UNKNOWN, Dataset
from distillmatch.streams import authors
from distillmatch.streams.orders import tasks_of_classes
from distillmatch.streams.unlabeled import Tasks, classes_of_streams, shares

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Task:
    """One task: its classes, and which images of the source it holds.

    `labeled` and `unlabeled` count through the source's training part, `test` through the part
    that the stream is evaluated on. `unlabeled_classes` are the classes that the environment shows;
    images of a source's unlabelled folders have none.
    """

    classes: tuple[int, ...]
    labeled: Indices
    unlabeled: Indices
    unlabeled_classes: tuple[int, ...]
    test: Indices


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks in learning order, with the configuration and the source they were made from."""

    config: StreamConfig
    class_names: tuple[str, ...]
    fingerprint: str
    tasks: tuple[Task, ...]
    evaluated_on: Literal["test", "train"] = "test"

    def __len__(self) -> int:
        return len(self.tasks)

    @cached_property
    def class_order(self) -> tuple[int, ...]:
        """All classes in learning order: the place of a class here is its output in a network."""
        return tuple(c for task in self.tasks for c in task.classes)

    @cached_property
    def digest(self) -> str:
        """A hash of all index lists, to tell two streams of one source apart."""
        digest = hashlib.blake2b(self.evaluated_on.encode(), digest_size=8)
        for task in self.tasks:
            for numbers in (task.classes, task.labeled, task.unlabeled, task.test):
                digest.update(np.asarray([len(numbers), *numbers], "<i8").tobytes())
        return digest.hexdigest()

    @property
    def task_sizes(self) -> tuple[int, ...]:
        """The number of classes in each task."""
        return tuple(len(task.classes) for task in self.tasks)

    def slots(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Translate the source's class numbers into places in the learning order."""
        table = np.full(len(self.class_names) + 1, UNKNOWN, dtype=np.int64)
        table[list(self.class_order)] = np.arange(len(self.class_order))
        return table[labels]


def build_stream(dataset: Dataset, config: StreamConfig) -> Stream:
    """Build the stream that the configuration describes; the same seed gives the same stream."""
    tasks = tasks_of_classes(dataset, config)
    streams = classes_of_streams(dataset, tasks, config)
    labeled, rest = _split(dataset, config)
    if config.splits == "authors":
        dealt = authors.unlabeled_orders({c: rest[c] for task in tasks for c in task}, config.seed)
        rest = [dealt[c] for c in range(len(rest))]
    unlabeled = _divide(dataset, rest, streams, config)
    test = [np.flatnonzero(np.isin(dataset.test.labels, task)) for task in tasks]
    return Stream(
        config=config,
        class_names=dataset.class_names,
        fingerprint=dataset.fingerprint,
        tasks=tuple(
            Task(
                classes=classes,
                labeled=np.concatenate([labeled[c] for c in classes]),
                unlabeled=unlabeled[i],
                unlabeled_classes=tuple(streams[i]),
                test=test[i],
            )
            for i, classes in enumerate(tasks)
        ),
    )


def labels_of_class(dataset: Dataset, config: StreamConfig, class_number: int, images: int) -> int:
    """Return how many of a class's images are labelled, or say that there are too few."""
    name = dataset.class_names[class_number]
    if images == 0:
        raise StreamError(f"class '{name}' of source '{dataset.name}' has no training image")
    if config.labels_per_class is None:
        return max(1, round(images * (config.label_fraction or dataset.label_fraction)))
    if config.labels_per_class > images:
        raise StreamError(
            f"labels_per_class is {config.labels_per_class}, but class '{name}' of source "
            f"'{dataset.name}' has only {images} training images"
        )
    return config.labels_per_class


def _split(dataset: Dataset, config: StreamConfig) -> tuple[list[Indices], list[Indices]]:
    """Split each class's training images by the seed into a labelled part and the rest."""
    by_class = np.argsort(dataset.train.labels, kind="stable")
    bounds = np.searchsorted(
        dataset.train.labels[by_class], np.arange(len(dataset.class_names) + 1)
    )
    labeled, rest = [], []
    for c, name in enumerate(dataset.class_names):
        images = by_class[bounds[c] : bounds[c + 1]]
        if config.splits == "authors":
            images = authors.label_order(images, config.seed)
        else:
            images = images[permutation(len(images), config.seed, "labels", name)]
        count = labels_of_class(dataset, config, c, len(images))
        labeled.append(np.sort(images[:count]))
        rest.append(images[count:])
    return labeled, rest


def _divide(
    dataset: Dataset, rest: list[Indices], streams: Tasks, config: StreamConfig
) -> list[Indices]:
    """Give each task its share of the unlabelled images; no image goes to two tasks."""
    received: list[list[Indices]] = [[] for _ in streams]
    dealt = 0
    for c, images in enumerate(rest):
        holders = [i for i, classes in enumerate(streams) if c in classes]
        for i, share in zip(holders, shares(images, len(holders), dealt), strict=True):
            received[i].append(share)
        # The next class of so few images begins where this one ended.
        dealt += len(images) if len(images) < len(holders) else 0
    without_class = np.flatnonzero(dataset.train.labels == UNKNOWN)
    if len(without_class):
        if config.unlabeled not in ("uniform", "none"):
            raise StreamError(
                f"unlabeled must be 'uniform' where a source has unlabelled folders, whose images "
                f"have no known class, not '{config.unlabeled}'"
            )
        order = permutation(len(without_class), config.seed, "unlabelled folders")
        shown = [] if config.unlabeled == "none" else shares(without_class[order], len(streams))
        for i, share in enumerate(shown):
            received[i].append(share)
    return [
        _limited(np.concatenate([*images, np.empty(0, np.int64)]), i, config)
        for i, images in enumerate(received)
    ]


def _limited(images: Indices, task: int, config: StreamConfig) -> Indices:
    limit = config.unlabeled_per_task
    if limit is not None and len(images) > limit:
        order = permutation(len(images), config.seed, "unlabelled limit", task)
        images = images[order[:limit]]
    return np.sort(images)
