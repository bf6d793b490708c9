"""The stream: a semi-supervised continual setting, and each task of it as a learner sees it."""

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from distillmatch.config import StreamConfig
from distillmatch.errors import StreamError
from distillmatch.files import write_atomically
from distillmatch.randomness import permutation
from distillmatch.sources.dataset import UNKNOWN, Dataset, ImageRows, Part, choose_rows, verify
from distillmatch.sources.registry import load_source
from distillmatch.streams.saved import SavedStream, made_from_other_data
from distillmatch.streams.splits import Indices
from distillmatch.streams.tasks import Task, build_tasks


@dataclass(frozen=True, eq=False, repr=False)
class Experience:
    """One task as a learner sees it: nothing here leads to the labels of unlabeled images.

    Labels are slots, places in the learning order: a task's classes follow those of earlier tasks,
    some of which may come back with further labeled images.

    Attributes:
        task: number of the task, from 0.
        task_sizes: number of classes in each task so far, this one included.
        images: labeled images, uint8 of shape (count, side, side, 3).
        labels: their labels, int64 of shape (count,).
        unlabeled: unlabeled images, uint8 of shape (count, side, side, 3).
        class_names: names of the classes seen so far, by slot.
    """

    task: int
    task_sizes: tuple[int, ...]
    images: ImageRows
    labels: Indices
    unlabeled: ImageRows
    class_names: tuple[str, ...] = ()

    @property
    def past(self) -> int:
        """The number of classes learned in earlier tasks."""
        return sum(self.task_sizes[:-1])

    @property
    def seen(self) -> int:
        """The number of classes learned in this task or earlier."""
        return sum(self.task_sizes)

    def __repr__(self) -> str:
        return (
            f"Experience(task {self.task}: {self.task_sizes[-1]} new classes of {self.seen} seen, "
            f"{len(self.images):,} labeled and {len(self.unlabeled):,} unlabeled images)"
        )


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationPart:
    """One task's test images, and their slots as labels."""

    images: ImageRows
    labels: Indices

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"EvaluationPart({len(self):,} images)"


@dataclass(frozen=True, eq=False, repr=False)
class Stream:
    """A semi-supervised continual stream: tasks in learning order over one data set.

    Iterating over a stream gives each task as a learner sees it, an `Experience`; `tasks` has the
    index lists.

    Attributes:
        config: the configuration that the stream was built from.
        dataset: the images and labels.
        tasks: the index lists of each task.
        evaluated_on: the part that `Task.test` indexes; `train` in validation folds.

    Example::

        >>> from distillmatch import Stream
        >>> for task in Stream.build(source="shapes", tasks=6, unlabeled="uniform"):
        ...     print(task.class_names[task.past :], task.images.shape, task.unlabeled.shape)
    """

    config: StreamConfig
    dataset: Dataset
    tasks: tuple[Task, ...]
    evaluated_on: Literal["test", "train"] = "test"

    @classmethod
    def build(
        cls, config: StreamConfig | None = None, dataset: Dataset | None = None, **options: Any
    ) -> Self:
        """Build the stream that a configuration describes; the same seed gives the same stream.

        Args:
            config: the configuration; by default that of the embedded images.
            dataset: the data set to use instead of loading `config.source`.
            options: options of `StreamConfig` that differ from `config`.
        """
        config = config or StreamConfig()
        config = config.replace(**options) if options else config
        dataset = dataset or load_source(config)
        return cls(config, dataset, build_tasks(dataset, config))

    @classmethod
    def load(
        cls,
        path: Path | str,
        dataset: Dataset | None = None,
        allow_import: str | Collection[str] = (),
    ) -> Self:
        """Load a stream that `save` wrote, and refuse it if it does not fit the data set.

        Args:
            path: the file.
            dataset: the data set the stream was made from, instead of loading its source.
            allow_import: sources of your own (`module:name`) that the file may name.
        """
        path = Path(path)
        saved = SavedStream.read(path)
        if dataset is None:
            allowed = (allow_import,) if isinstance(allow_import, str) else allow_import
            dataset = load_source(saved.stream_config(path, allowed))
        verify(dataset)
        tasks, source = saved.index_lists(path, dataset), saved.config.get("source")
        # Nothing is imported here: the source is loaded already.
        config = saved.stream_config(path, (source,) if isinstance(source, str) else ())
        return cls(config, dataset, tasks, saved.evaluated_on)

    def save(self, path: Path | str) -> None:
        """Write the index lists and the configuration to a JSON file, without any image."""
        of_stream = set(StreamConfig.model_fields)  # of a run's configuration
        record = {
            "fingerprint": self.fingerprint,
            "evaluated_on": self.evaluated_on,
            "config": self.config.model_dump(mode="json", include=of_stream),
            "tasks": [
                {name: np.asarray(numbers).tolist() for name, numbers in vars(task).items()}
                for task in self.tasks
            ],
        }
        text = SavedStream.model_validate(record).model_dump_json()
        write_atomically(Path(path), f"{text}\n", "saving the stream")

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Experience]:
        return map(self.experience, range(len(self)))

    def __repr__(self) -> str:
        labeled = sum(len(task.labeled) for task in self.tasks)
        unlabeled = sum(len(task.unlabeled) for task in self.tasks)
        return (
            f"Stream('{self.dataset.name}': {len(self)} tasks, {len(self.class_order)} classes, "
            f"{labeled:,} labeled and {unlabeled:,} unlabeled images, seed {self.config.seed})"
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the data set's classes by number."""
        return self.dataset.class_names

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the data set."""
        return self.dataset.fingerprint

    @cached_property
    def class_order(self) -> tuple[int, ...]:
        """The classes that are learned by slot, which is a class's output in a network."""
        return tuple(c for task in self.tasks for c in task.classes)

    @cached_property
    def digest(self) -> str:
        """A hash of all index lists, which distinguishes two streams of one source."""
        digest = hashlib.blake2b(self.evaluated_on.encode(), digest_size=8)
        for task in self.tasks:
            for numbers in (task.classes, task.labeled, task.unlabeled, task.test):
                digest.update(np.asarray([len(numbers), *numbers], "<i8").tobytes())
        return digest.hexdigest()

    @property
    def task_sizes(self) -> tuple[int, ...]:
        """The number of classes that each task is the first to label."""
        return tuple(len(task.classes) for task in self.tasks)

    def experience(self, task: int) -> Experience:
        """Return a task, numbered from 0, as a learner sees it; mapped images stay on disk."""
        chosen, sizes, train = self.tasks[task], self.task_sizes[: task + 1], self.dataset.train
        images, unlabeled = (
            choose_rows(train.images, rows) for rows in (chosen.labeled, chosen.unlabeled)
        )
        labels = self.slots(train.labels[chosen.labeled])
        names = tuple(self.class_names[c] for c in self.class_order[: sum(sizes)])
        return Experience(task, sizes, images, labels, unlabeled, names)

    def evaluation_part(self, task: int) -> EvaluationPart:
        """Return a task's test images."""
        part: Part = getattr(self.dataset, self.evaluated_on)
        chosen = self.tasks[task].test
        return EvaluationPart(choose_rows(part.images, chosen), self.slots(part.labels[chosen]))

    def true_slots_of_unlabeled(self, task: int) -> Indices:
        """Return the true slots of a task's unlabeled images, for diagnostics only."""
        return self.slots(self.dataset.train.labels[self.tasks[task].unlabeled])

    def validation_folds(self, folds: int = 3, tasks: int | None = None) -> tuple["Stream", ...]:
        """Return k streams over the first tasks, each evaluated on another part of their labels.

        What a fold holds out is an equal share of every class, taken from the task that is the
        first to label it; the source's test part is not touched. `tasks` is half of the stream's by
        default, as in the paper.
        """
        first = tasks if tasks is not None else max(1, len(self) // 2)
        if not 1 <= first <= len(self):
            raise StreamError(
                f"tasks must be between 1 and {len(self)} for validation, not {first}"
            )
        if folds < 2:
            raise StreamError(f"folds must be at least 2, not {folds}")
        cut = zip(*(self._held_out(task, folds) for task in self.tasks[:first]), strict=True)
        return tuple(replace(self, tasks=of_fold, evaluated_on="train") for of_fold in cut)

    def _held_out(self, task: Task, folds: int) -> list[Task]:
        """Return the task for each fold, with another part of its classes held out for tests."""
        labels = self.dataset.train.labels[task.labeled]
        held_out = [np.empty(0, np.int64)] * folds
        for c in task.classes:
            images, name = task.labeled[labels == c], self.class_names[c]
            if len(images) < folds:
                raise StreamError(
                    f"class '{name}' has {len(images)} labeled images, too few for {folds} folds"
                )
            order = permutation(len(images), self.config.seed, "folds", name)
            pieces = zip(held_out, np.array_split(images[order], folds), strict=True)
            held_out = [np.union1d(part, piece) for part, piece in pieces]
        return [replace(task, labeled=np.setdiff1d(task.labeled, h), test=h) for h in held_out]

    def check_fingerprint(self, dataset: Dataset) -> None:
        """Refuse a data set other than the one the stream was made from."""
        if dataset is not self.dataset and dataset.fingerprint != self.fingerprint:
            raise StreamError(f"the stream was {made_from_other_data(self.fingerprint, dataset)}")

    def slots(self, labels: Indices) -> Indices:
        """Translate the source's class numbers into slots; classes never learned come last."""
        return self._slot_of_class[labels]

    @cached_property
    def _slot_of_class(self) -> Indices:
        classes = np.arange(len(self.class_names))
        never = np.setdiff1d(classes, self.class_order)
        table = np.full(len(classes) + 1, UNKNOWN, dtype=np.int64)  # the last is that of UNKNOWN
        table[[*self.class_order, *never]] = classes
        return table

    def returning(self, task: int) -> tuple[int, ...]:
        """Return the slots of earlier classes that come back in a task, numbered from 0."""
        slots = np.unique(self.slots(self.dataset.train.labels[self.tasks[task].labeled]))
        return tuple(slots[slots < sum(self.task_sizes[:task])].tolist())


def build_stream(dataset: Dataset, config: StreamConfig) -> Stream:
    """Build the stream that a configuration describes over a data set."""
    return Stream.build(config, dataset)
