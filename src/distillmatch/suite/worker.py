"""What a worker process does: runs, whose progress and ends it reports as events."""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from distillmatch.errors import LockedError
from distillmatch.runs import Interrupted
from distillmatch.runs.side_by_side import Job, run_side_by_side

PROGRESS_SECONDS = 0.5


class Event(NamedTuple):
    """A report on a run: its kind, the run's name, and what `Queue.handle` needs to know."""

    kind: Literal["progress", "finished", "failed", "locked", "put_back", "lost", "say"]
    name: str
    details: tuple[Any, ...] = ()


Send = Callable[[Event], None]


class ReportedProgress:
    """Sends which share of a run is done, at most every so many seconds."""

    def __init__(self, name: str, send: Send, seconds: float) -> None:
        self.name, self.send, self.seconds = name, send, seconds
        self.total = self.done = self.sent_at = 0.0

    def start(self, total: float, done: float = 0.0) -> None:
        """Begin to report."""
        self.total, self.done = total, done
        self._report()

    def advance(self, done: float, doing: str) -> None:
        """Add finished work."""
        self.done += done
        if time.monotonic() - self.sent_at >= self.seconds:
            self._report()

    def stop(self) -> None:
        """Do nothing: the run's end is an event of its own."""

    def _report(self) -> None:
        self.sent_at = time.monotonic()
        self.send(Event("progress", self.name, (min(self.done / (self.total or 1.0), 1.0),)))


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


def work(connection: Any, at_once: int, checkpoint_seconds: float) -> None:
    """Do the runs that come over a connection, until there is None, and send events back.

    If the parent dies, the last run is finished, so that none is left half done.
    """
    sending = threading.Lock()

    def send(event: Event) -> None:
        with sending, contextlib.suppress(OSError):  # a parent that has died need not know
            connection.send(event)

    def next_job() -> Job | None:
        with contextlib.suppress(EOFError, OSError):
            job: Job | None = connection.recv()
            return job
        return None

    def failed(error: Exception) -> None:
        import torch  # noqa: PLC0415 - the runs have imported it

        if isinstance(error, torch.AcceleratorError):
            # The device is lost to this process, and with it the runs beside this one: another
            # process resumes them from their checkpoints.
            os._exit(1)

    run_jobs(next_job, send, at_once, checkpoint_seconds, failed=failed)


def serve(connection: Any, log: Path, at_once: int, checkpoint_seconds: float) -> None:
    """Work as a process of its own, whose output goes to a log."""
    if sys.platform != "win32":
        os.setsid()  # Ctrl-C reaches the parent alone, which asks the workers to stop
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        work(connection, at_once, checkpoint_seconds)
    except Interrupted as stop:
        sys.exit(stop.exit_code)
