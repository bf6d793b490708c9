"""The tasks of a stream as index lists of labeled, unlabeled, and test images."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from distillmatch.config import StreamConfig
from distillmatch.errors import StreamError
from distillmatch.randomness import permutation
from distillmatch.sources.dataset import UNKNOWN, Dataset
from distillmatch.streams.classes import (
    Tasks,
    classes_of_tasks,
    classes_of_unlabeled,
    classes_that_return,
    distractors_of,
)
from distillmatch.streams.splits import Indices, label_orders, unlabeled_orders


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """One task: its classes, and the indices of its images in the data set.

    Attributes:
        classes: numbers of the classes that it is the first to label, in learning order.
        labeled: indices of labeled images in the training part, of these classes and of those that
            come back.
        unlabeled: indices of unlabeled images in the training part.
        unlabeled_classes: the classes of the unlabeled images, apart from images of unlabeled
            folders, which have none.
        test: indices of test images of `classes` in the part that the stream is evaluated on.
    """

    classes: tuple[int, ...]
    labeled: Indices
    unlabeled: Indices
    unlabeled_classes: tuple[int, ...]
    test: Indices

    def __repr__(self) -> str:
        return (
            f"Task({len(self.classes)} classes: {len(self.labeled):,} labeled, "
            f"{len(self.unlabeled):,} unlabeled, {len(self.test):,} test images)"
        )


def build_tasks(dataset: Dataset, config: StreamConfig) -> tuple[Task, ...]:
    """Return the tasks that a configuration describes; the same seed gives the same tasks."""
    distractors = distractors_of(dataset, config)
    tasks = classes_of_tasks(dataset, distractors, config)
    order = np.argsort(dataset.train.labels, kind="stable")
    bounds = np.searchsorted(dataset.train.labels[order], np.arange(len(dataset.class_names) + 1))
    by_class = [order[start:end] for start, end in pairwise(bounds)]
    by_class, counts = label_orders(dataset, by_class, config)
    for c in distractors:
        counts[c] = 0
    pairs = list(zip(by_class, counts, strict=True))
    labeled = _labeled([images[:n] for images, n in pairs], tasks, config)
    own = [(*of_task, *distractors) for of_task in labeled]
    shown = classes_of_unlabeled(dataset, tasks, own, config)
    class_order = [c for classes in (*tasks, distractors) for c in classes]
    rest = unlabeled_orders([images[n:] for images, n in pairs], class_order, config)
    unlabeled = _unlabeled(dataset, rest, shown, config)
    return tuple(
        Task(
            classes=classes,
            labeled=np.concatenate([np.sort(images) for images in labeled[i].values()]),
            unlabeled=unlabeled[i],
            unlabeled_classes=tuple(shown[i]),
            test=np.flatnonzero(np.isin(dataset.test.labels, classes)),
        )
        for i, classes in enumerate(tasks)
    )


def _labeled(
    by_class: Sequence[Indices], tasks: Tasks, config: StreamConfig
) -> list[dict[int, Indices]]:
    """Divide each class's labeled images equally over the tasks in which it appears.

    Earlier tasks get the remainder, so a class appears in no more tasks than it has images.
    """
    returning = classes_that_return(tasks, config)
    received: list[dict[int, Indices]] = [{} for _ in tasks]
    for first, classes in enumerate(tasks):
        for c in classes:
            appears = [first, *(i for i, back in enumerate(returning) if c in back)]
            shares = np.array_split(by_class[c], min(len(appears), len(by_class[c])))
            for i, share in zip(appears, shares, strict=False):
                received[i][c] = share
    return received


def _unlabeled(
    dataset: Dataset, by_class: Sequence[Indices], shown: Tasks, config: StreamConfig
) -> list[Indices]:
    """Divide the unlabeled images over the tasks; no image goes to two tasks."""
    received: list[list[Indices]] = [[np.empty(0, np.int64)] for _ in shown]
    dealt = 0
    for c, images in enumerate(by_class):
        holders = [i for i, classes in enumerate(shown) if c in classes]
        for i, share in zip(holders, _shares(images, len(holders), dealt), strict=True):
            received[i].append(share)
        # The next class with so few images begins where this one ended.
        dealt += len(images) if len(images) < len(holders) else 0
    without_class = np.flatnonzero(dataset.train.labels == UNKNOWN)
    if len(without_class) and config.unlabeled != "none":
        if config.unlabeled != "uniform":
            raise StreamError(
                f"unlabeled must be 'uniform' where a source has unlabeled folders, whose images "
                f"have no known class, not '{config.unlabeled}'"
            )
        # The purpose is spelled as in earlier versions, so that their streams stay the same.
        order = permutation(len(without_class), config.seed, "unlabelled folders")
        for i, share in enumerate(_shares(without_class[order], len(shown))):
            received[i].append(share)
    whole, limit = [np.concatenate(images) for images in received], config.unlabeled_per_task
    for i, images in enumerate(whole):
        if limit is not None and len(images) > limit:
            order = permutation(len(images), config.seed, "unlabelled limit", i)
            whole[i] = images[order[:limit]]
    return [np.sort(images) for images in whole]


def _shares(images: Indices, holders: int, first: int = 0) -> list[Indices]:
    """Divide a class's images into equal shares and leave the remainder unused.

    If there are fewer images than holders, deal them one by one, beginning with holder `first`.
    """
    size = len(images) // holders if holders else 0
    if size == 0:
        return [images[(place := (i - first) % holders) : place + 1] for i in range(holders)]
    return [images[i * size : (i + 1) * size] for i in range(holders)]
