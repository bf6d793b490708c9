"""Saved streams: index lists in JSON, with the fingerprint of the source they belong to."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, StreamError
from distillmatch.files import read_record, write_atomically
from distillmatch.sources.dataset import Dataset, verify
from distillmatch.streams.stream import Stream, Task

Index = Annotated[int, Field(ge=0, lt=2**62)]
FORMAT = "distillmatch stream"
VERSION = 1


def save_stream(stream: Stream, path: Path) -> None:
    """Write a stream so that it can be read back against the same source."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": stream.fingerprint,
        "evaluated_on": stream.evaluated_on,
        "config": stream.config.model_dump(mode="json", include=set(StreamConfig.model_fields)),
        "tasks": [
            {
                "classes": list(task.classes),
                "unlabeled_classes": list(task.unlabeled_classes),
                "labeled": task.labeled.tolist(),
                "unlabeled": task.unlabeled.tolist(),
                "test": task.test.tolist(),
            }
            for task in stream.tasks
        ],
    }
    write_atomically(path, json.dumps(content) + "\n", "saving the stream")


def read_stream_config(path: Path, allow_import: Collection[str] = ()) -> StreamConfig:
    """Return the configuration that a saved stream was made with.

    A source of one's own that it names must be in `allow_import`.
    """
    try:
        return StreamConfig.from_mapping(_read(path)["config"], str(path), allow_import)
    except ConfigError as error:
        raise StreamError(str(error)) from None


def saved_task_count(path: Path) -> int:
    """Return the number of tasks of a saved stream, which its configuration may leave open."""
    return len(_read(path)["tasks"])


def read_stream(path: Path, dataset: Dataset) -> Stream:
    """Read a saved stream; refuse it if it was made from other data or says what cannot be."""
    content = _read(path)
    verify(dataset)
    if content["fingerprint"] != dataset.fingerprint:
        raise StreamError(
            f"{path}: made from data with fingerprint {content['fingerprint']}, "
            f"but source '{dataset.name}' here has {dataset.fingerprint}"
        )
    try:
        source = content["config"].get("source")  # of which nothing is imported here
        config = StreamConfig.from_mapping(content["config"], str(path), (source,))
    except ConfigError as error:
        raise StreamError(str(error)) from None
    tasks = tuple(_task(task) for task in content["tasks"])
    _check_meaning(path, dataset, tasks, content["evaluated_on"])
    given = config, dataset.class_names, dataset.fingerprint, tasks, content["evaluated_on"]
    return Stream(*given)


class _TaskSchema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    classes: Annotated[list[Index], Field(min_length=1)]
    unlabeled_classes: list[Index]
    labeled: Annotated[list[Index], Field(min_length=1)]
    unlabeled: list[Index]
    test: list[Index]


class _StreamSchema(BaseModel):
    """What a saved stream holds."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: str
    version: int
    fingerprint: str
    evaluated_on: Literal["test", "train"]
    config: dict[str, Any]
    tasks: Annotated[list[_TaskSchema], Field(min_length=1)]


def _read(path: Path) -> dict[str, Any]:
    record = read_record(path, "saved stream", FORMAT, VERSION, StreamError)
    try:
        return _StreamSchema.model_validate(record).model_dump()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise StreamError(f"{path}: {place}: {first['msg'].lower()}") from None


def _task(saved: dict[str, Any]) -> Task:
    return Task(
        classes=tuple(saved["classes"]),
        labeled=np.array(saved["labeled"], np.int64),
        unlabeled=np.array(saved["unlabeled"], np.int64),
        unlabeled_classes=tuple(saved["unlabeled_classes"]),
        test=np.array(saved["test"], np.int64),
    )


def _check_meaning(
    path: Path, dataset: Dataset, tasks: tuple[Task, ...], evaluated_on: str
) -> None:
    """Refuse index lists that do not fit the data: classes, labels, images shown twice."""
    classes = [c for task in tasks for c in task.classes]
    if len(set(classes)) < len(classes) or max(classes) >= len(dataset.class_names):
        raise StreamError(
            f"{path}: each of the {len(dataset.class_names)} classes may be in one task, and there "
            "are no others"
        )
    part = dataset.test if evaluated_on == "test" else dataset.train
    shown = np.concatenate([np.concatenate([task.labeled, task.unlabeled]) for task in tasks])
    if len(shown) and shown.max() >= len(dataset.train):
        raise StreamError(f"{path}: an index lies outside the {len(dataset.train)} training images")
    if len(np.unique(shown)) < len(shown):
        raise StreamError(f"{path}: a training image is in two tasks, or labeled and unlabeled")
    for number, task in enumerate(tasks, 1):
        if len(task.test) and task.test.max() >= len(part):
            raise StreamError(f"{path}: task {number}: an index lies outside the test images")
        for name, labels in (
            ("labeled", dataset.train.labels[task.labeled]),
            ("test", part.labels[task.test]),
        ):
            if not np.isin(labels, task.classes).all():
                raise StreamError(
                    f"{path}: task {number}: a {name} image is not of the task's classes"
                )
        missing = set(task.classes) - set(dataset.train.labels[task.labeled].tolist())
        if missing:
            name = dataset.class_names[min(missing)]
            raise StreamError(f"{path}: task {number}: class '{name}' has no labeled image")
