"""Work side by side in threads of one process: several runs on one GPU, or the stages of one.

Each thread computes on a stream of its own. The pieces of work share nothing that their results
depend on: every draw is a function of a seed and names, and there is no common generator or cache.
So each ends as it would alone.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from distillmatch.concurrency import shared_device
from distillmatch.config import IMAGE_KEYS, RunConfig
from distillmatch.engine import NoProgress, Progress
from distillmatch.runs.interruption import THREADS, Interrupted, StopRequest
from distillmatch.sources import Dataset, load_source
from distillmatch.streams import Stream

MOST_AT_ONCE = 32
"""Streams of a GPU that torch keeps apart; beyond them two runs would share one."""
CONTINUES = "what is done is kept, and the same command continues from there"

Work = Callable[[], None]
Tell = Callable[[str], None]


def work_side_by_side(
    next_work: Callable[[], Work | None], at_once: int, stop: StopRequest
) -> None:
    """Do pieces of work until there are no more; raise `Interrupted` if a stop is asked for.

    An error in one of them stops the others where they can be resumed, and is then raised.
    """

    def ask() -> Work | None:
        with contextlib.suppress(Interrupted), stop.idle():
            return next_work()
        return None

    if at_once > 1:
        with shared_device():
            _work_in_threads(ask, at_once, stop)
        return
    while (work := ask()) is not None:
        work()
    if stop.asked:
        raise stop.interrupted(f"between two pieces of work; {CONTINUES}")


def _work_in_threads(next_work: Callable[[], Work | None], at_once: int, stop: StopRequest) -> None:
    """Do work in a pool of threads while this thread waits for signals.

    A second signal ends this thread at once, and the others after their epoch.
    """
    errors: list[BaseException] = []

    def do(work: Work) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
            stop.ask("the failure of another")

    # torch keeps memory that was used on a stream for that stream: each thread keeps its own.
    pool = ThreadPoolExecutor(at_once, f"{THREADS}run", initializer=_own_stream)
    under_way: set[Future[None]] = set()
    is_all = False
    try:
        while under_way or not (is_all or stop.asked):
            if len(under_way) == at_once or is_all or stop.asked:
                under_way = wait(under_way, return_when=FIRST_COMPLETED).not_done
            elif (work := next_work()) is not None:
                under_way.add(pool.submit(do, work))
            else:
                is_all = not stop.asked
    except BaseException:
        stop.ask("the end of their process")
        pool.shutdown(wait=False)
        raise
    pool.shutdown()
    for failure in errors:
        if not isinstance(failure, Interrupted):
            raise failure
    if errors or not is_all:
        count = f"{len(errors)} under way" if errors else "some left"
        raise stop.interrupted(f"with {count}; {CONTINUES}")


def _own_stream() -> None:
    """Let this thread compute on a stream of its own, where there is a GPU."""
    if torch.cuda.is_available():
        torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]


class SharedProgress(NoProgress):
    """Adds the progress of the stages of a run to that of the whole, which has been started."""

    def __init__(self, whole: Progress) -> None:
        self.whole = whole
        self._lock = threading.Lock()

    def advance(self, done: float, doing: str) -> None:
        """Add finished work of a stage."""
        with self._lock:
            self.whole.advance(done, doing)


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
    checkpoint_seconds: float = 60.0,
    tell: Tell | None = None,
) -> None:
    """Do runs until `next_job` returns nothing, at most `at_once` at a time.

    `next_job` is called in this thread and may wait. `finished` and `failed` are called one at a
    time, in the thread of their run; the others go on after a failure. Ctrl-C and SIGTERM, if this
    is the main thread, let every run write its checkpoint and then raise `Interrupted`; a second
    signal raises it at once.
    """
    from distillmatch.runs.runner import run  # noqa: PLC0415 - whose stages are done here too

    say = tell or logging.getLogger("distillmatch").warning
    loading, reporting, stop = threading.Lock(), threading.Lock(), StopRequest()
    loaded: dict[str, Dataset] = {}

    def dataset_of(config: RunConfig) -> Dataset:
        """Return a data set, the last one if that is asked for again."""
        key = source_key(config)
        with loading:
            if key not in loaded:
                loaded.clear()
                loaded[key] = load_source(config)
                for problem in loaded[key].problems:
                    say(f"left out: {problem}")
            return loaded[key]

    def do(job: Job) -> None:
        try:
            dataset = dataset_of(job.config)
            result = run(
                job.config,
                job.out,
                dataset=dataset,
                stream=None if job.stream is None else Stream.load(job.stream, dataset),
                progress=None if progress is None else progress(job),
                checkpoint_seconds=checkpoint_seconds,
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
        work_side_by_side(next_work, at_once, stop)


def source_key(config: RunConfig) -> str:
    """Return what configurations with the same data set have in common.

    A user's own source may read anything of a configuration.
    """
    return config.model_dump_json(include=None if ":" in config.source else set(IMAGE_KEYS))
