"""What a learner is given of a task: images and labels, and nothing that leads to the truth."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distillmatch.errors import StreamError
from distillmatch.sources.dataset import Dataset
from distillmatch.sources.rows import ImageRows, choose_rows
from distillmatch.streams.stream import Stream


@dataclass(frozen=True, eq=False)
class Experience:
    """One task as a learner sees it.

    Labels are places in the learning order, so that the classes of task `n` follow those of the
    tasks before it. The arrays are copies, or say where in a mapped file the images are: the labels
    of the unlabelled images cannot be reached from here.
    """

    task: int
    task_sizes: tuple[int, ...]
    images: ImageRows
    labels: NDArray[np.int64]
    unlabeled: ImageRows

    @property
    def past(self) -> int:
        """The number of classes learned in earlier tasks."""
        return sum(self.task_sizes[:-1])

    @property
    def seen(self) -> int:
        """The number of classes learned in this task or earlier."""
        return sum(self.task_sizes)


@dataclass(frozen=True, eq=False)
class EvaluationPart:
    """One task's test images, and their labels as places in the learning order."""

    images: ImageRows
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


def experience(dataset: Dataset, stream: Stream, task: int) -> Experience:
    """Return what a learner is given of one task (numbered from 0)."""
    check_fingerprint(dataset, stream)
    chosen = stream.tasks[task]
    return Experience(
        task=task,
        task_sizes=stream.task_sizes[: task + 1],
        images=choose_rows(dataset.train.images, chosen.labeled),
        labels=stream.slots(dataset.train.labels[chosen.labeled]),
        unlabeled=choose_rows(dataset.train.images, chosen.unlabeled),
    )


def evaluation_part(dataset: Dataset, stream: Stream, task: int) -> EvaluationPart:
    """Return one task's test images, with labels as places in the learning order."""
    check_fingerprint(dataset, stream)
    part = dataset.test if stream.evaluated_on == "test" else dataset.train
    chosen = stream.tasks[task].test
    return EvaluationPart(choose_rows(part.images, chosen), stream.slots(part.labels[chosen]))


def true_slots_of_unlabeled(dataset: Dataset, stream: Stream, task: int) -> NDArray[np.int64]:
    """Return the truth about a task's unlabelled images, for diagnostics only."""
    check_fingerprint(dataset, stream)
    return stream.slots(dataset.train.labels[stream.tasks[task].unlabeled])


def check_fingerprint(dataset: Dataset, stream: Stream) -> None:
    """Refuse to read a stream against other data than it was made from."""
    if dataset.fingerprint != stream.fingerprint:
        raise StreamError(
            f"the stream was made from data with fingerprint {stream.fingerprint}, "
            f"but source '{dataset.name}' here has {dataset.fingerprint}"
        )
