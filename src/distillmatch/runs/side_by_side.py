"""Runs, or stages of one, side by side in threads, each on a stream of its own on a GPU.

They share nothing that their results depend on: every draw is a function of a seed and names, and
there is no common generator or cache. So each ends as it would alone.
"""

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from distillmatch.concurrency import shared_device
from distillmatch.config import IMAGE_KEYS, RunConfig
from distillmatch.engine import Progress
from distillmatch.errors import ConfigError, SourceError
from distillmatch.runs.folder import Resume
from distillmatch.runs.interruption import STOPPING, THREADS, Interrupted, StopRequest
from distillmatch.sources import Dataset, load_source
from distillmatch.streams import Stream

CHECKPOINT_SECONDS = 60.0
MOST_AT_ONCE = 32
"""Streams of a GPU that torch keeps apart; beyond them two runs would share one."""
TURN_SECONDS = 0.2
CONTINUES = "what is done is kept, and the same command continues from there"
CONTINUED = "continued"
"""What a part is doing when it reports work that was done before."""

Work = Callable[[], None]
Tell = Callable[[str], None]
Place = AbstractContextManager[Any]


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
    from distillmatch.runs.runner import run  # noqa: PLC0415  which does stages side by side

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


def work_side_by_side(
    next_work: Callable[[], Work | None], at_once: int, stop: StopRequest, tell: Tell
) -> None:
    """Do pieces of work until there are no more; raise `Interrupted` if a stop is asked for.

    An error in one of them stops the others where they can be resumed, and is then raised.
    """
    if not 1 <= at_once <= MOST_AT_ONCE:
        raise ConfigError(f"runs at once must be 1 to {MOST_AT_ONCE}, not {at_once}")

    def ask() -> Work | None:
        try:
            with stop.idle():
                return next_work()
        except Interrupted:
            if not stop.asked:
                raise
            return None

    if at_once > 1:
        with shared_device():
            _work_in_threads(ask, at_once, stop, tell)
        return
    while (work := ask()) is not None:
        work()
    if stop.asked:
        raise stop.interrupted(f"between two pieces of work; {CONTINUES}")


def _work_in_threads(
    next_work: Callable[[], Work | None], at_once: int, stop: StopRequest, tell: Tell
) -> None:
    """Do work in daemon threads while this thread waits for signals.

    A second signal can so end the process during an epoch.
    """
    # torch keeps memory that was used on a stream for that stream, so streams are reused.
    places: queue.SimpleQueue[Place] = queue.SimpleQueue()
    for _ in range(at_once):
        places.put(_place())
    errors: list[BaseException] = []

    def do(work: Work, place: Place) -> None:
        try:
            with place:
                work()
        except BaseException as error:
            fail(error)
        finally:
            places.put(place)

    def fail(error: BaseException) -> None:
        errors.append(error)
        if not isinstance(error, Interrupted):
            stop.ask("the failure of another")

    free: list[Place] = []
    is_all = is_told = False
    try:
        while len(free) < at_once or not (is_all or stop.asked):
            if stop.signal_number is not None and not is_told:
                tell(STOPPING)
                is_told = True
            with suppress(queue.Empty):
                free.append(places.get(timeout=0 if len(free) == at_once else TURN_SECONDS))
            if free and not (is_all or stop.asked):
                try:
                    work = next_work()
                except Exception as error:
                    fail(error)
                    continue
                is_all = work is None and not stop.asked
                if work is not None:
                    given = (work, free.pop())
                    name = f"{THREADS}run"
                    threading.Thread(target=do, args=given, name=name, daemon=True).start()
    except BaseException:  # this thread ends at once, the others after their epoch
        stop.ask("the end of their process")
        raise
    for failure in errors:
        if not isinstance(failure, Interrupted):
            raise failure
    if errors or not is_all:
        count = f"{len(errors)} under way" if errors else "some left"
        raise stop.interrupted(f"with {count}; {CONTINUES}")


def _place() -> Place:
    """Return a stream to compute on, where there is a GPU."""
    if not torch.cuda.is_available():
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]


def source_key(config: RunConfig) -> str:
    """Return what configurations with the same data set have in common.

    A user's own source may read anything of a configuration.
    """
    return config.model_dump_json(include=None if ":" in config.source else set(IMAGE_KEYS))


class Datasets:
    """Data sets of several runs, each loaded once; one that fails is not tried again.

    Of equal ones, which a user's source may give for different seeds, one is kept.
    """

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self._loading = threading.Lock()
        self._loaded: dict[str, Dataset | SourceError] = {}
        self._kept: dict[tuple[Any, ...], Dataset] = {}

    def of(self, config: RunConfig) -> Dataset:
        """Return the data set of a configuration."""
        key = source_key(config)
        with self._loading:
            if key not in self._loaded:
                try:
                    self._loaded[key] = self._load(config)
                except SourceError as error:
                    self._loaded[key] = error
            found = self._loaded[key]
        if isinstance(found, SourceError):
            raise SourceError(str(found)) from found
        return found

    def _load(self, config: RunConfig) -> Dataset:
        dataset = load_source(config)
        kept = self._kept.setdefault(
            (dataset.name, dataset.label_fraction, dataset.fingerprint), dataset
        )
        for problem in dataset.problems if kept is dataset else ():
            self.tell(f"left out: {problem}")
        return kept


class SharedProgress:
    """Adds up the progress of `parts`, taken to be of equal size unless it was started."""

    def __init__(self, whole: Progress, parts: int) -> None:
        self.whole, self.parts = whole, parts
        self._started = False
        self._lock = threading.Lock()

    def start(self, total: float, done: float = 0.0) -> None:
        """Begin with the whole work."""
        self._started = True
        self.whole.start(total, done)

    def part(self) -> Progress:
        """Return the progress of one part."""
        return _Part(self)

    def stop(self) -> None:
        """End the whole progress."""
        self.whole.stop()


class _Part:
    def __init__(self, shared: SharedProgress) -> None:
        self.shared = shared

    def start(self, total: float, done: float = 0.0) -> None:
        with self.shared._lock:
            if not self.shared._started:
                self.shared.start(total * self.shared.parts, done)
            elif done:
                self.shared.whole.advance(done, CONTINUED)

    def advance(self, done: float, doing: str) -> None:
        with self.shared._lock:
            self.shared.whole.advance(done, doing)

    def stop(self) -> None:
        """Do nothing: other parts may go on."""
