"""Several runs in one process: jobs from a queue, side by side, on data sets that they share."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distillmatch.config import IMAGE_KEYS, RunConfig
from distillmatch.engine import Progress
from distillmatch.runs.folder import Resume
from distillmatch.runs.interruption import StopRequest
from distillmatch.runs.runner import CHECKPOINT_SECONDS, run
from distillmatch.runs.threads import Tell, Work, work_side_by_side
from distillmatch.sources import Dataset, load_source
from distillmatch.streams import Stream


@dataclass(frozen=True)
class Job:
    """One run to do: its name and folder; `stream` is a saved one to learn instead."""

    name: str
    config: RunConfig
    out: Path
    stream: Path | None = None


def run_side_by_side(
    next_job: Callable[[], Job | None],
    at_once: int,
    *,
    finished: Callable[[Job, dict[str, Any]], None],
    failed: Callable[[Job, Exception], None],
    progress: Callable[[Job], Progress] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    resume: Resume = "auto",
    tell: Tell | None = None,
) -> None:
    """Do runs until `next_job` returns nothing, at most `at_once` at a time.

    `next_job` is called in this thread and may wait. `finished` and `failed` are called one at a
    time, in the thread of their run; the others go on after a failure. Ctrl-C and SIGTERM, if this
    is the main thread, let every run write its checkpoint and then raise `Interrupted`; a second
    signal raises it at once.
    """
    say = tell or logging.getLogger("distillmatch").warning
    datasets, reporting, stop = Datasets(say), threading.Lock(), StopRequest()

    def do(job: Job) -> None:
        try:
            dataset = datasets.of(job.config)
            result = run(
                job.config,
                job.out,
                dataset=dataset,
                stream=None if job.stream is None else Stream.load(job.stream, dataset),
                progress=None if progress is None else progress(job),
                checkpoint_seconds=checkpoint_seconds,
                resume=resume,
                tell=lambda sentence: say(f"{job.name}: {sentence}"),
                stop=stop,
                # Where runs are side by side, the stages of each come one after another.
                at_once=None if at_once == 1 else 1,
            )
        except Exception as error:
            with reporting:
                failed(job, error)
        else:
            with reporting:
                finished(job, result)

    def next_work() -> Work | None:
        job = next_job()
        return None if job is None else lambda: do(job)

    with stop:
        work_side_by_side(next_work, at_once, stop, say)


def source_key(config: RunConfig) -> str:
    """Return what configurations with the same data set have in common.

    A user's own source may read anything of a configuration.
    """
    return config.model_dump_json(include=None if ":" in config.source else set(IMAGE_KEYS))


class Datasets:
    """Data sets of several runs, each loaded once.

    Of equal ones, which a user's source may give for different seeds, one is kept.
    """

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self._loading = threading.Lock()
        self._loaded: dict[str, Dataset] = {}

    def of(self, config: RunConfig) -> Dataset:
        """Return the data set of a configuration."""
        key = source_key(config)
        with self._loading:
            if key not in self._loaded:
                self._loaded[key] = self._load(config)
            return self._loaded[key]

    def _load(self, config: RunConfig) -> Dataset:
        dataset = load_source(config)
        for other in self._loaded.values():
            if _identity(other) == _identity(dataset):
                return other
        for problem in dataset.problems:
            self.tell(f"left out: {problem}")
        return dataset


def _identity(dataset: Dataset) -> tuple[Any, ...]:
    return dataset.name, dataset.label_fraction, dataset.fingerprint
