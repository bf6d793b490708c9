"""Validation splits: streams made of training data only, for choosing hyperparameters."""

from dataclasses import replace

import numpy as np

from distillmatch.errors import StreamError
from distillmatch.randomness import permutation
from distillmatch.streams.stream import Stream
from distillmatch.streams.tasks import Task


def validation_folds(
    stream: Stream, folds: int = 3, tasks: int | None = None
) -> tuple[Stream, ...]:
    """Return k streams over the first tasks, each holding out another part of the labeled images.

    A fold is evaluated on its held-out images, an equal share of every class, taken from the task
    that is the first to label it; the source's test part is not touched. `tasks` is half of the
    stream's by default, as in the paper.
    """
    first = tasks if tasks is not None else max(1, len(stream) // 2)
    if not 1 <= first <= len(stream):
        raise StreamError(f"tasks must be between 1 and {len(stream)} for validation, not {first}")
    if folds < 2:
        raise StreamError(f"folds must be at least 2, not {folds}")
    tasks_of_folds = zip(
        *(_folds(stream, task, folds) for task in stream.tasks[:first]), strict=True
    )
    return tuple(replace(stream, tasks=of_fold, evaluated_on="train") for of_fold in tasks_of_folds)


def _folds(stream: Stream, task: Task, folds: int) -> list[Task]:
    """Return a task for each fold, with a nearly equal part of each class held out."""
    labels = stream.dataset.train.labels[task.labeled]
    parts: list[list[np.ndarray]] = [[] for _ in range(folds)]
    for c in task.classes:
        images, name = task.labeled[labels == c], stream.class_names[c]
        if len(images) < folds:
            raise StreamError(
                f"class '{name}' has {len(images)} labeled images, too few for {folds} folds"
            )
        order = permutation(len(images), stream.config.seed, "folds", name)
        for part, piece in zip(parts, np.array_split(images[order], folds), strict=True):
            part.append(piece)
    held_out = [np.sort(np.concatenate(part)) for part in parts]
    return [replace(task, labeled=np.setdiff1d(task.labeled, h), test=h) for h in held_out]
