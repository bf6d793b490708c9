"""Saved streams: index lists in JSON, with the fingerprint of the data set they index."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, StreamError, kind_of
from distillmatch.files import read_record
from distillmatch.sources.dataset import Dataset
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
        if problem := next(_problems(self, tasks, dataset), None):
            raise StreamError(f"{path}: {problem}")
        return tasks


def made_from_other_data(fingerprint: str, dataset: Dataset) -> str:
    """Return the sentence that a stream of this fingerprint belongs to another data set."""
    return (
        f"made from data with fingerprint {fingerprint}, "
        f"but source '{dataset.name}' here has {dataset.fingerprint}"
    )


def _problems(saved: SavedStream, tasks: Sequence[Task], dataset: Dataset) -> Iterator[str]:
    """Yield what keeps the tasks from being a stream of this data set; the first one counts."""
    if saved.fingerprint != dataset.fingerprint:
        yield made_from_other_data(saved.fingerprint, dataset)
    count = len(dataset.class_names)
    learned = [c for task in tasks for c in task.classes]
    if len({*learned}) < len(learned) or max(learned) >= count:
        yield f"expected classes from 0 to {count - 1}, each in one task at most"
    tested, seen = getattr(dataset, saved.evaluated_on), list[int]()
    for number, task in enumerate(tasks, 1):
        if max(task.unlabeled_classes, default=0) >= count:
            yield f"task {number}: expected unlabeled_classes from 0 to {count - 1}"
        train = np.concatenate([task.labeled, task.unlabeled])
        for part, images in (("train", train), (saved.evaluated_on, task.test)):
            there = len(getattr(dataset, part))
            if images.max(initial=-1) >= there:
                yield f"index {images.max()} lies outside the {there} {part} images"
        seen += task.classes
        for labeled, images in ((dataset.train, task.labeled), (tested, task.test)):
            if not np.isin(labeled.labels[images], seen).all():
                yield f"task {number}: expected labels of its classes and those before it"
