"""Saved streams: index lists in JSON, with the fingerprint of the data set they index."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, StreamError, kind_of
from distillmatch.files import read_record
from distillmatch.sources.dataset import UNKNOWN, Dataset
from distillmatch.streams.tasks import Task

FORMAT = "distillmatch stream"
VERSION = 1
FORMER_KEYS = ("tree",)  # of configurations that earlier versions saved
Index = Annotated[int, Field(ge=0, lt=2**62)]


class _SavedTask(BaseModel):
    """The fields of a `Task` as lists."""

    model_config = ConfigDict(extra="forbid", strict=True)

    classes: Annotated[list[Index], Field(min_length=1)]
    unlabeled_classes: list[Index]
    labeled: Annotated[list[Index], Field(min_length=1)]
    unlabeled: list[Index]
    test: list[Index]


class SavedStream(BaseModel):
    """What the file of a saved stream holds; messages call it `path`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: str = FORMAT
    version: int = VERSION
    fingerprint: str
    evaluated_on: Literal["test", "train"]
    config: dict[str, Any]
    tasks: Annotated[list[_SavedTask], Field(min_length=1)]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file and refuse one of another form."""
        record = read_record(path, "saved stream", FORMAT, VERSION, StreamError)
        try:
            return cls.model_validate(record)
        except ValidationError as error:
            first = error.errors()[0]
            place, came = ".".join(map(str, first["loc"]))[:80], first["input"]
            found = repr(came)[:40] if isinstance(came, str | int | float) else kind_of(came)
            raise StreamError(f"{path}: {place}: {first['msg'].lower()}, not {found}") from None

    def stream_config(self, path: Path, allow_import: Collection[str] = ()) -> StreamConfig:
        """Return the configuration; your own source must be in `allow_import`."""
        try:
            config = {key: value for key, value in self.config.items() if key not in FORMER_KEYS}
            return StreamConfig.from_mapping(config, str(path), allow_import)
        except ConfigError as error:
            raise StreamError(str(error)) from None

    def index_lists(self, path: Path, dataset: Dataset) -> tuple[Task, ...]:
        """Return the tasks; refuse them if they do not fit the data set."""
        tasks = tuple(
            Task(
                tuple(saved.classes),
                np.array(saved.labeled, np.int64),
                np.array(saved.unlabeled, np.int64),
                tuple(saved.unlabeled_classes),
                np.array(saved.test, np.int64),
            )
            for saved in self.tasks
        )
        for problem in _problems(self, tasks, dataset):
            raise StreamError(f"{path}: {problem}")
        return tasks


def _problems(saved: SavedStream, tasks: Sequence[Task], dataset: Dataset) -> Iterator[str]:
    """Yield what keeps the tasks from being a stream of this data set; the first one counts."""
    if saved.fingerprint != dataset.fingerprint:
        yield (
            f"made from data with fingerprint {saved.fingerprint}, "
            f"but source '{dataset.name}' here has {dataset.fingerprint}"
        )
    count = len(dataset.class_names)
    if _repeats_or_exceeds([c for task in tasks for c in task.classes], count):
        yield f"expected classes from 0 to {count - 1}, each in one task at most"
    train, tested = dataset.train.labels, getattr(dataset, saved.evaluated_on).labels
    used = {"training": [i for task in tasks for i in (task.labeled, task.unlabeled)], "test": []}
    used["training" if saved.evaluated_on == "train" else "test"] += [t.test for t in tasks]
    for (name, lists), labels in zip(used.items(), (train, dataset.test.labels), strict=True):
        images = np.concatenate([np.empty(0, np.int64), *lists])
        if len(images) and images.max() >= len(labels):
            yield f"index {images.max()} lies outside the {len(labels)} {name} images"
        if len(np.unique(images)) < len(images):
            yield f"a {name} image is used twice"
    seen: list[int] = []
    for number, task in enumerate(tasks, 1):
        if _repeats_or_exceeds(task.unlabeled_classes, count):
            yield f"task {number}: expected unlabeled_classes from 0 to {count - 1}, each once"
        seen += task.classes
        for problem in _label_problems(task, seen, dataset, tested):
            yield f"task {number}: {problem}"


def _label_problems(
    task: Task, seen: Sequence[int], dataset: Dataset, tested: NDArray[np.int64]
) -> Iterator[str]:
    """Yield images of classes that a task does not list, and classes without images."""
    train, shown = dataset.train.labels, (*task.unlabeled_classes, UNKNOWN)
    for name, found, expected, listed in (
        ("labeled", train[task.labeled], seen, "classes or earlier ones"),
        ("test", tested[task.test], task.classes, "classes"),
        ("unlabeled", train[task.unlabeled], shown, "unlabeled_classes"),
    ):
        if not np.isin(found, expected).all():
            yield f"{name} images are not all of the task's {listed}"
    for c in task.classes:
        if not (train[task.labeled] == c).any():
            yield f"class '{dataset.class_names[c]}' has no labeled image"
    if not len(task.test) and np.isin(tested, task.classes).any():
        yield "expected test images of its classes, found none"


def _repeats_or_exceeds(classes: Sequence[int], count: int) -> bool:
    return len(set(classes)) < len(classes) or max(classes, default=0) >= count
