"""Workers on this machine: processes, one a core or a GPU, each for one run or several at once."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from distillmatch.errors import ConfigError
from distillmatch.runs.runner import CHECKPOINT_SECONDS
from distillmatch.runs.side_by_side import MOST_AT_ONCE, Job
from distillmatch.suite.worker import PROGRESS_SECONDS, Event, serve

LOG = "workers.log"
SPAWN = multiprocessing.get_context("spawn")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Of every worker: there is one for each core."""
RETRIES = 1
"""Here a worker dies by its run more likely than by chance."""


def on_cpu(jobs: int | None = None) -> list[dict[str, str]]:
    """Return the environments of one process a core, or of `jobs` of them."""
    return [{}] * (jobs or os.cpu_count() or 1)


def on_gpus(gpus: int, jobs: int | None = None) -> list[dict[str, str]]:
    """Return the environments of one process a GPU, or of `jobs` of them that share the GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(gpus)]
    return [{"CUDA_VISIBLE_DEVICES": names[number % gpus]} for number in range(jobs or gpus)]


@dataclass(eq=False)
class _Child:
    """A worker process, the connection to it, and the names of the runs it has."""

    process: Any
    connection: Any
    has: set[str] = field(default_factory=set)


class LocalWorkers:
    """Worker processes, each started when there is something to do for it."""

    def __init__(
        self,
        environments: list[dict[str, str]],
        log_folder: Path,
        at_once: int = 1,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ) -> None:
        if not 1 <= at_once <= MOST_AT_ONCE:
            raise ConfigError(f"runs at once on a GPU must be 1 to {MOST_AT_ONCE}, not {at_once}")
        self.environments = environments
        self.log = log_folder / LOG
        self.at_once = at_once
        self.checkpoint_seconds = checkpoint_seconds
        self._children: dict[int, _Child] = {}
        self._is_stopping = False

    def has_room(self) -> bool:
        """Return whether another run can be given now."""
        return self._load(self._freest()) < self.at_once

    def start(self, job: Job) -> None:
        """Give a run to the process that has the fewest."""
        place = self._freest()
        child = self._children.get(place) or self._launch(place)
        child.has.add(job.name)
        self._send(child, job)

    def events(self, seconds: float) -> Iterator[Event]:
        """Wait at most so long, and return what happened."""
        children = {child.connection: place for place, child in self._children.items()}
        if not children:  # others have all that is left
            time.sleep(seconds)
            return
        for connection in wait(list(children), seconds):
            place = children[connection]
            try:
                event: Event = self._children[place].connection.recv()
            except (EOFError, OSError):
                yield from self._ended(place)
                continue
            if event.kind not in ("progress", "say"):
                self._children[place].has.discard(event.name)
            yield event

    def stop(self) -> Iterator[Event]:
        """Let all runs stop where they can be resumed, and leave no process behind."""
        self._is_stopping = True
        for child in self._children.values():
            child.process.terminate()
            self._send(child, None)
        while self._children:
            yield from self.events(PROGRESS_SECONDS)

    def close(self) -> None:
        """Leave no process behind; only after an error are there any that still have runs."""
        deque(self.stop(), maxlen=0)

    def _freest(self) -> int:
        return min(range(len(self.environments)), key=self._load)

    def _load(self, place: int) -> int:
        return len(self._children[place].has) if place in self._children else 0

    def _launch(self, place: int) -> _Child:
        ours, theirs = SPAWN.Pipe()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        given = theirs, self.log, self.at_once, self.checkpoint_seconds
        process = SPAWN.Process(target=serve, args=given)
        before = dict(os.environ)
        os.environ.update({**ENVIRONMENT, **self.environments[place]})
        try:
            process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()  # so that the end of the process is the end of the connection
        self._children[place] = _Child(process, ours)
        return self._children[place]

    def _send(self, child: _Child, job: Job | None) -> None:
        """Send a run to a process, or the end of its work."""
        with contextlib.suppress(OSError):  # it has just died, and its end will be noticed
            child.connection.send(job)

    def _ended(self, place: int) -> Iterator[Event]:
        """Let another worker have the runs that a dead one had."""
        child = self._children.pop(place)
        child.process.join()
        child.connection.close()
        code = child.process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
        for name in child.has:
            lost = Event("lost", name, (f"its worker ended by {how}, see {self.log}", RETRIES))
            yield Event("put_back", name) if self._is_stopping else lost
