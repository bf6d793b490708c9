"""Several runs at once in one process, each in a thread and, on a GPU, on a stream of its own.

Runs share nothing that their results depend on: every draw is a function of a seed and names, no
generator and no cache is common to them. So each ends as it would alone.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distillmatch.config import RunConfig
from distillmatch.engine import Progress
from distillmatch.errors import SourceError
from distillmatch.runs.folder import Resume
from distillmatch.runs.interruption import StopRequest
from distillmatch.runs.runner import CHECKPOINT_SECONDS, run
from distillmatch.runs.threads import Tell, Work, work_side_by_side
from distillmatch.sources import Dataset, load_source
from distillmatch.streams import read_stream

SOURCE_KEYS = (
    "source", "data_dir", "test_dir", "unlabeled_dirs", "tree", "image_size", "bad_images",
    "cache_dir",
)  # fmt: skip
"""What our own sources read of a configuration; a source of the user's own may read anything."""
SAME_KEYS = ("name", "label_fraction", "fingerprint")
"""What data sets that can stand for each other have in common."""


@dataclass(frozen=True)
class Job:
    """One run to do: its name, and where it goes; `stream` is a saved one to learn instead."""

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
    time, in the thread of their run; a run that fails is no reason for the others to end. Ctrl-C
    and SIGTERM, where this is the main thread, let every run write its checkpoint, and then raise
    `Interrupted`; a second one raises it at once.
    """
    say = tell or logging.getLogger("distillmatch").warning
    datasets = Datasets(say)
    reporting = threading.Lock()
    stop = StopRequest()

    def do(job: Job) -> None:
        try:
            dataset = datasets.of(job.config)
            stream = None if job.stream is None else read_stream(job.stream, dataset)
            result = run(
                job.config,
                job.out,
                dataset=dataset,
                stream=stream,
                progress=None if progress is None else progress(job),
                checkpoint_seconds=checkpoint_seconds,
                resume=resume,
                tell=lambda sentence: say(f"{job.name}: {sentence}"),
                stop=stop,
                # Where runs are side by side already, the stages of each come one after another.
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
    """Return what configurations with the same data set have in common."""
    return config.model_dump_json(include=None if ":" in config.source else set(SOURCE_KEYS))


class Datasets:
    """Data sets that several runs learn from, each loaded once; one that fails is not tried again.

    A download that cannot be had takes its time to fail, and would take it for every run.
    """

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self._loading = threading.Lock()
        self._loaded: dict[str, Dataset] = {}
        self._failed: dict[str, str] = {}

    def of(self, config: RunConfig) -> Dataset:
        """Return the data set that a configuration names."""
        key = source_key(config)
        with self._loading:
            if key in self._failed:
                raise SourceError(self._failed[key])
            if key not in self._loaded:
                try:
                    self._loaded[key] = self._same(load_source(config))
                except SourceError as error:
                    self._failed[key] = str(error)
                    raise
            return self._loaded[key]

    def _same(self, dataset: Dataset) -> Dataset:
        """Return a data set, or the equal one that is in memory already."""
        for known in self._loaded.values():
            if all(getattr(known, key) == getattr(dataset, key) for key in SAME_KEYS):
                return known
        for problem in dataset.problems:
            self.tell(f"left out: {problem}")
        return dataset
