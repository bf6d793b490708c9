"""Validation splits: streams made of training data only, for choosing hyperparameters."""

from dataclasses import replace

import numpy as np

from distillmatch.errors import StreamError
from distillmatch.randomness import permutation
from distillmatch.sources.dataset import Dataset
from distillmatch.streams.stream import Stream, check_fingerprint
from distillmatch.streams.tasks import Task


def validation_folds(
    dataset: Dataset, stream: Stream, folds: int = 3, tasks: int | None = None
) -> tuple[Stream, ...]:
    """Return k streams over the first tasks, each holding out another part of the labeled images.

    A fold is evaluated on its held-out images, an equal share of every class; the source's test
    part is not touched. `tasks` is half of the stream's by default, as in the paper.
    """
    check_fingerprint(dataset, stream)
    first = tasks if tasks is not None else max(1, len(stream) // 2)
    if not 1 <= first <= len(stream):
        raise StreamError(f"tasks must be between 1 and {len(stream)} for validation, not {first}")
    if folds < 2:
        raise StreamError(f"folds must be at least 2, not {folds}")
    parts = [_folds_of_task(dataset, stream, task, folds) for task in stream.tasks[:first]]
    return tuple(
        replace(
            stream,
            tasks=tuple(
                replace(
                    task,
                    labeled=np.setdiff1d(task.labeled, part[fold]),
                    test=part[fold],
                )
                for task, part in zip(stream.tasks, parts, strict=False)
            ),
            evaluated_on="train",
        )
        for fold in range(folds)
    )


def _folds_of_task(dataset: Dataset, stream: Stream, task: Task, folds: int) -> list[np.ndarray]:
    """Cut each class's labeled images, shuffled, into `folds` parts of nearly equal size."""
    labels = dataset.train.labels[task.labeled]
    parts: list[list[np.ndarray]] = [[] for _ in range(folds)]
    for c in task.classes:
        images = task.labeled[labels == c]
        if len(images) < folds:
            raise StreamError(
                f"class '{dataset.class_names[c]}' has {len(images)} labeled images, "
                f"too few for {folds} folds"
            )
        order = permutation(len(images), stream.config.seed, "folds", dataset.class_names[c])
        for part, piece in zip(parts, np.array_split(images[order], folds), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]
