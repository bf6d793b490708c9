"""A worker: a process that takes runs from its parent and does them, one or several at once.

Both speak in lines of JSON: on standard input a run for each time that one was asked for, on
standard output what becomes of them. When the input ends, so does the worker, after its last run:
a parent that died leaves no run half done.
"""

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from distillmatch.config import RunConfig
from distillmatch.errors import LockedError
from distillmatch.runs import Interrupted
from distillmatch.runs.side_by_side import CONTINUED, Job, run_side_by_side

PROGRESS_SECONDS = 0.5
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Of every worker: there is one for each core."""
ENDS = ("finished", "failed", "locked", "stopped")
"""The events after which a worker no longer has a run."""
Send = Callable[[dict[str, Any]], None]


class ReportedProgress:
    """Passes on how far a run is, in the engine's units, not more often than anyone looks.

    What was done before the run was taken up is not what was `worked`: it says nothing of the pace.
    """

    def __init__(self, name: str, send: Send, seconds: float = PROGRESS_SECONDS) -> None:
        self.name = name
        self.send = send
        self.seconds = seconds
        self.total = self.left = self.worked = 0.0
        self.sent_at = 0.0

    def start(self, total: float, done: float = 0.0) -> None:
        """Begin to report."""
        self.total, self.left = total, total - done
        self._report()

    def advance(self, done: float, doing: str) -> None:
        """Add finished work."""
        self.left = max(0.0, self.left - done)
        if doing != CONTINUED:
            self.worked += done
        if time.monotonic() - self.sent_at >= self.seconds:
            self._report()

    def stop(self) -> None:
        """Have nothing to end."""

    def _report(self) -> None:
        self.sent_at = time.monotonic()
        amounts = {"total": self.total, "left": self.left, "worked": self.worked}
        self.send({"event": "progress", "name": self.name, **amounts})


def encode_job(job: Job) -> dict[str, Any]:
    """Return a run as JSON can hold it."""
    config = job.config.model_dump(mode="json")
    stream = None if job.stream is None else str(job.stream)
    return {"name": job.name, "config": config, "out": str(job.out), "stream": stream}


def decode_job(record: dict[str, Any]) -> Job:
    """Return the run that `encode_job` was given."""
    stream = None if record["stream"] is None else Path(record["stream"])
    return Job(record["name"], RunConfig(**record["config"]), Path(record["out"]), stream)


def failure(job: Job, error: Exception) -> dict[str, Any]:
    """Return the event of a run that could not go on."""
    if isinstance(error, LockedError):
        return {"event": "locked", "name": job.name}
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    trace = "".join(traceback.format_exception(error))
    return {"event": "failed", "name": job.name, "reason": reason, "trace": trace}


class Worker:
    """Does runs until there are no more."""

    def __init__(self, source: TextIO, target: TextIO) -> None:
        self.source = source
        self.target = target
        self._writing = threading.Lock()

    def send(self, event: dict[str, Any]) -> None:
        """Tell the parent something; one that has died need not know."""
        with self._writing, contextlib.suppress(OSError):
            self.target.write(json.dumps(event) + "\n")
            self.target.flush()

    def next_job(self) -> Job | None:
        """Ask for a run and wait for it."""
        self.send({"event": "want"})
        line = self.source.readline()
        return decode_job(json.loads(line)) if line else None

    def finished(self, job: Job, result: dict[str, Any]) -> None:
        """Tell that a run's result is in its folder."""
        self.send({"event": "finished", "name": job.name})

    def failed(self, job: Job, error: Exception) -> None:
        """Tell that a run could not go on."""
        import torch  # noqa: PLC0415 - the runs have imported it

        self.send(failure(job, error))
        if isinstance(error, torch.AcceleratorError):
            # The device is lost to this process, and with it the runs beside this one: another
            # process takes them up from their checkpoints.
            os._exit(1)

    def run(self, at_once: int, checkpoint_seconds: float) -> None:
        """Do runs until the input ends."""
        run_side_by_side(
            self.next_job,
            at_once,
            finished=self.finished,
            failed=self.failed,
            progress=lambda job: ReportedProgress(job.name, self.send),
            checkpoint_seconds=checkpoint_seconds,
            tell=lambda sentence: self.send({"event": "tell", "sentence": sentence}),
        )


def main() -> int:
    """Work as the parent says: how many runs at once, and seconds between checkpoints."""
    at_once, checkpoint_seconds = int(sys.argv[1]), float(sys.argv[2])
    # What libraries print must not come between the lines for the parent.
    target = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        Worker(sys.stdin, target).run(at_once, checkpoint_seconds)
    except Interrupted as stop:
        return stop.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
