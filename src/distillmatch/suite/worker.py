"""What a worker process does: runs, whose progress and ends it tells as events.

A local worker reads pickled runs from its standard input and writes pickled events to its standard
output. When its input ends, it ends after its last run: a parent that died leaves none half done.
"""

import contextlib
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO, Literal, NamedTuple

from distillmatch.errors import LockedError
from distillmatch.runs import Interrupted
from distillmatch.runs.side_by_side import CONTINUED, Job, run_side_by_side

PROGRESS_SECONDS = 0.5


class Event(NamedTuple):
    """What a worker tells of a run: the method of `Queue` that handles it, and its arguments."""

    kind: Literal["progress", "finished", "failed", "locked", "put_back", "lost", "say"]
    name: str
    details: tuple[Any, ...] = ()


Send = Callable[[Event], None]


class ReportedProgress:
    """Sends which share of a run is done, at most every so many seconds."""

    def __init__(self, name: str, send: Send, seconds: float) -> None:
        self.name, self.send, self.seconds = name, send, seconds
        self.total = self.done = self.found = self.sent_at = 0.0

    def start(self, total: float, done: float = 0.0) -> None:
        """Begin to report."""
        self.total, self.done, self.found = total, done, done
        self._report()

    def advance(self, done: float, doing: str) -> None:
        """Add finished work; what a stage of the run continues with was found."""
        self.done += done
        if doing == CONTINUED:
            self.found += done
        if time.monotonic() - self.sent_at >= self.seconds:
            self._report()

    def stop(self) -> None:
        """Do nothing: the run's end is an event of its own."""

    def _report(self) -> None:
        self.sent_at, total = time.monotonic(), self.total or 1.0
        shares = min(self.done / total, 1.0), min(self.found / total, 1.0)
        self.send(Event("progress", self.name, shares))


def run_jobs(
    next_job: Callable[[], Job | None],
    send: Send,
    at_once: int = 1,
    checkpoint_seconds: float = 60.0,
    progress_seconds: float = PROGRESS_SECONDS,
    failed: Callable[[Exception], None] | None = None,
) -> None:
    """Do runs until there are no more; `failed` is called after the event of a failed run."""

    def on_failure(job: Job, error: Exception) -> None:
        if isinstance(error, LockedError):
            send(Event("locked", job.name))
            return
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        send(Event("failed", job.name, (reason, "".join(traceback.format_exception(error)))))
        if failed is not None:
            failed(error)

    run_side_by_side(
        next_job,
        at_once,
        finished=lambda job, result: send(Event("finished", job.name, (result,))),
        failed=on_failure,
        progress=lambda job: ReportedProgress(job.name, send, progress_seconds),
        checkpoint_seconds=checkpoint_seconds,
        tell=lambda sentence: send(Event("say", "a worker", (sentence,))),
    )


def work(source: BinaryIO, target: BinaryIO, at_once: int, checkpoint_seconds: float) -> None:
    """Do the runs that come from `source`, and write events to `target`."""
    writing = threading.Lock()

    def send(event: Event) -> None:
        with writing, contextlib.suppress(OSError):  # a parent that has died need not know
            pickle.dump(event, target)
            target.flush()

    def next_job() -> Job | None:
        try:
            job: Job = pickle.load(source)
        except EOFError:
            return None
        return job

    def failed(error: Exception) -> None:
        import torch  # noqa: PLC0415 - the runs have imported it

        if isinstance(error, torch.AcceleratorError):
            # The device is lost to this process, and with it the runs beside this one: another
            # process resumes them from their checkpoints.
            os._exit(1)

    send(Event("say", ""))  # the process has started
    run_jobs(next_job, send, at_once, checkpoint_seconds, failed=failed)


def main() -> None:
    """Work as the parent says: how many runs at once, and seconds between checkpoints."""
    # What libraries print must not come between the events for the parent.
    target = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        work(sys.stdin.buffer, target, int(sys.argv[1]), float(sys.argv[2]))
    except Interrupted as stop:
        sys.exit(stop.exit_code)
