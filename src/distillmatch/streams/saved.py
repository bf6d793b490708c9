"""Saved streams: index lists in JSON, with the fingerprint of the data set they index."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, StreamError, kind_of
from distillmatch.files import read_record, write_atomically
from distillmatch.sources.dataset import UNKNOWN, Dataset, verify
from distillmatch.streams.tasks import Task

FORMAT = "distillmatch stream"
VERSION = 1
LISTS = ("labeled", "unlabeled", "test")
Index = Annotated[int, Field(ge=0, lt=2**62)]


class _SavedTask(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    classes: Annotated[list[Index], Field(min_length=1)]
    unlabeled_classes: list[Index]
    labeled: Annotated[list[Index], Field(min_length=1)]
    unlabeled: list[Index]
    test: list[Index]


class _Content(BaseModel):
    """What the file holds."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: str
    version: int
    fingerprint: str
    evaluated_on: Literal["test", "train"]
    config: dict[str, Any]
    tasks: Annotated[list[_SavedTask], Field(min_length=1)]


@dataclass(frozen=True)
class SavedStream:
    """The content of a file of the right form; `config_and_tasks` checks it against a data set."""

    path: Path
    content: _Content

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file and refuse one of another form."""
        record = read_record(path, "saved stream", FORMAT, VERSION, StreamError)
        try:
            return cls(path, _Content.model_validate(record))
        except ValidationError as error:
            first = error.errors()[0]
            place, came = ".".join(map(str, first["loc"]))[:80], first["input"]
            found = repr(came)[:40] if isinstance(came, str | int | float) else kind_of(came)
            raise StreamError(f"{path}: {place}: {first['msg'].lower()}, not {found}") from None

    @staticmethod
    def write(
        path: Path,
        config: StreamConfig,
        fingerprint: str,
        tasks: Sequence[Task],
        evaluated_on: str,
    ) -> None:
        """Write a stream, and of a run's configuration only what describes the stream."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": fingerprint,
            "evaluated_on": evaluated_on,
            "config": config.model_dump(mode="json", include=set(StreamConfig.model_fields)),
            "tasks": [
                {
                    "classes": list(task.classes),
                    "unlabeled_classes": list(task.unlabeled_classes),
                    **{name: getattr(task, name).tolist() for name in LISTS},
                }
                for task in tasks
            ],
        }
        write_atomically(path, json.dumps(content) + "\n", "saving the stream")

    def config(self, allow_import: Collection[str] = ()) -> StreamConfig:
        """Return the configuration; your own source must be in `allow_import`."""
        try:
            return StreamConfig.from_mapping(self.content.config, str(self.path), allow_import)
        except ConfigError as error:
            raise StreamError(str(error)) from None

    def config_and_tasks(self, dataset: Dataset) -> tuple[StreamConfig, tuple[Task, ...]]:
        """Return configuration and tasks; refuse them if they do not fit the data set."""
        verify(dataset)
        if self.content.fingerprint != dataset.fingerprint:
            self._refuse(
                f"made from data with fingerprint {self.content.fingerprint}, "
                f"but source '{dataset.name}' here has {dataset.fingerprint}"
            )
        source = self.content.config.get("source")  # nothing is imported here: it is loaded already
        config = self.config((source,) if isinstance(source, str) else ())
        tasks = tuple(
            Task(
                classes=tuple(task.classes),
                unlabeled_classes=tuple(task.unlabeled_classes),
                **{name: np.array(getattr(task, name), np.int64) for name in LISTS},
            )
            for task in self.content.tasks
        )
        self._check_classes(dataset, tasks)
        self._check_images(dataset, tasks)
        for number, task in enumerate(tasks, 1):
            self._check_labels(dataset, task, f"task {number}")
        return config, tasks

    def _refuse(self, sentence: str) -> NoReturn:
        raise StreamError(f"{self.path}: {sentence}")

    def _check_classes(self, dataset: Dataset, tasks: Sequence[Task]) -> None:
        count = len(dataset.class_names)
        classes = [c for task in tasks for c in task.classes]
        if len(set(classes)) < len(classes) or max(classes) >= count:
            self._refuse(f"expected classes from 0 to {count - 1}, each in one task at most")
        for number, task in enumerate(tasks, 1):
            shown = task.unlabeled_classes
            if len(set(shown)) < len(shown) or max(shown, default=0) >= count:
                self._refuse(
                    f"task {number}: expected unlabeled_classes from 0 to {count - 1}, each once"
                )

    def _check_images(self, dataset: Dataset, tasks: Sequence[Task]) -> None:
        """Refuse an image that does not exist, or that is used twice."""
        on_train = self.content.evaluated_on == "train"
        of_train = [images for task in tasks for images in (task.labeled, task.unlabeled)]
        of_test = [task.test for task in tasks]
        parts = [("training", len(dataset.train), of_train + (of_test if on_train else []))]
        parts += [] if on_train else [("test", len(dataset.test), of_test)]
        for name, count, lists in parts:
            used = np.concatenate(lists)
            if len(used) and used.max() >= count:
                self._refuse(f"index {used.max()} lies outside the {count} {name} images")
            if len(np.unique(used)) < len(used):
                self._refuse(f"a {name} image is used twice")

    def _check_labels(self, dataset: Dataset, task: Task, where: str) -> None:
        """Refuse images of classes that the task does not list, and classes without images."""
        tested = (dataset.test if self.content.evaluated_on == "test" else dataset.train).labels
        labels = dataset.train.labels
        for name, found, expected in (
            ("labeled", labels[task.labeled], task.classes),
            ("test", tested[task.test], task.classes),
            ("unlabeled", labels[task.unlabeled], (*task.unlabeled_classes, UNKNOWN)),
        ):
            if not np.isin(found, expected).all():
                listed = "unlabeled_classes" if name == "unlabeled" else "classes"
                self._refuse(f"{where}: {name} images are not all of the task's {listed}")
        for c in task.classes:
            if not (labels[task.labeled] == c).any():
                self._refuse(f"{where}: class '{dataset.class_names[c]}' has no labeled image")
        if not len(task.test) and np.isin(tested, task.classes).any():
            self._refuse(f"{where}: expected test images of its classes, found none")


def read_stream_config(path: Path, allow_import: Collection[str] = ()) -> StreamConfig:
    """Return the configuration that a saved stream was made with."""
    return SavedStream.read(path).config(allow_import)


def saved_task_count(path: Path) -> int:
    """Return the number of tasks of a saved stream, which its configuration need not name."""
    return len(SavedStream.read(path).content.tasks)
