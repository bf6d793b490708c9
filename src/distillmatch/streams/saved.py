"""Saved streams: index lists in JSON, with the fingerprint of the source they belong to."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, StreamError
from distillmatch.files import read_record, write_atomically
from distillmatch.sources.dataset import Dataset, verify
from distillmatch.streams.stream import Stream, Task

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


def read_stream_config(path: Path) -> StreamConfig:
    """Return the configuration that a saved stream was made with, without its source."""
    try:
        return StreamConfig.from_mapping(_read(path).get("config"), str(path))
    except ConfigError as error:
        raise StreamError(str(error)) from None


def saved_task_count(path: Path) -> int:
    """Return the number of tasks of a saved stream, which its configuration may leave open."""
    tasks = _read(path).get("tasks")
    if not isinstance(tasks, list):
        raise StreamError(f"{path}: a part of the saved stream is missing ('tasks')")
    return len(tasks)


def read_stream(path: Path, dataset: Dataset) -> Stream:
    """Read a saved stream; refuse it if it was made from other data or is not whole."""
    content = _read(path)
    verify(dataset)
    if content.get("fingerprint") != dataset.fingerprint:
        raise StreamError(
            f"{path}: made from data with fingerprint {content.get('fingerprint')}, "
            f"but source '{dataset.name}' here has {dataset.fingerprint}"
        )
    try:
        config = StreamConfig.from_mapping(content["config"], str(path))
        tasks = tuple(_task(task) for task in content["tasks"])
        evaluated_on = content["evaluated_on"]
    except ConfigError as error:
        raise StreamError(str(error)) from None
    except (KeyError, TypeError, ValueError) as error:
        raise StreamError(f"{path}: a part of the saved stream is missing ({error})") from None
    limits = {"train": len(dataset.train), "test": len(dataset.test)}
    if evaluated_on not in limits:
        raise StreamError(f"{path}: evaluated_on must be 'test' or 'train', not {evaluated_on!r}")
    for task in tasks:
        _check_range(path, task.labeled, limits["train"])
        _check_range(path, task.unlabeled, limits["train"])
        _check_range(path, task.test, limits[evaluated_on])
        _check_range(path, np.array(task.classes, np.int64), len(dataset.class_names))
    return Stream(config, dataset.class_names, dataset.fingerprint, tasks, evaluated_on)


def _read(path: Path) -> dict[str, Any]:
    return read_record(path, "saved stream", FORMAT, VERSION, StreamError)


def _task(saved: dict[str, Any]) -> Task:
    return Task(
        classes=tuple(int(c) for c in saved["classes"]),
        labeled=np.array(saved["labeled"], np.int64),
        unlabeled=np.array(saved["unlabeled"], np.int64),
        unlabeled_classes=tuple(int(c) for c in saved["unlabeled_classes"]),
        test=np.array(saved["test"], np.int64),
    )


def _check_range(path: Path, numbers: np.ndarray, limit: int) -> None:
    if numbers.ndim != 1 or (len(numbers) and not 0 <= numbers.min() <= numbers.max() < limit):
        raise StreamError(f"{path}: an index lies outside the source's {limit} entries")
