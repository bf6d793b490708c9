"""Workers on this machine: processes, one a core or a GPU, each for one run or several at once."""

import contextlib
import os
import pickle
import queue as queues
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from distillmatch.errors import ConfigError, TrainingError
from distillmatch.runs.runner import CHECKPOINT_SECONDS
from distillmatch.runs.side_by_side import MOST_AT_ONCE, Job
from distillmatch.suite.worker import PROGRESS_SECONDS, Event

LOG = "workers.log"
WORKER = "distillmatch.suite.worker"
"""Not run as a script, whose events would be of another class than the parent's."""
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
    """A worker process, the runs it has, and whether it has sent anything."""

    process: subprocess.Popen[bytes]
    place: int
    has: set[str] = field(default_factory=set)
    is_heard: bool = False


class LocalWorkers:
    """Worker processes, started when there is something to do for them.

    Each has a session of its own, so that Ctrl-C reaches this process alone, which asks them to
    stop.
    """

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
        self._heard: queues.SimpleQueue[tuple[_Child, Event | None]] = queues.SimpleQueue()
        self._is_stopping = False

    def has_room(self) -> bool:
        """Return whether another run can be given now."""
        return self._load(self._freest()) < self.at_once

    def start(self, job: Job) -> None:
        """Give a run to the process that has the fewest."""
        place = self._freest()
        child = self._children.get(place) or self._launch(place)
        child.has.add(job.name)
        self._give(child, job)

    def events(self, seconds: float) -> Iterator[Event]:
        """Wait at most so long, and return what happened."""
        with contextlib.suppress(queues.Empty):
            child, event = self._heard.get(timeout=seconds)
            while True:
                yield from self._ended(child) if event is None else self._told(child, event)
                child, event = self._heard.get_nowait()

    def stop(self) -> Iterator[Event]:
        """Let all runs stop where they can be resumed, and leave no process behind."""
        self._is_stopping = True
        for child in self._children.values():
            child.process.terminate()
            self._give(child, None)
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
        settings = str(self.at_once), str(self.checkpoint_seconds)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", f"from {WORKER} import main; main()", *settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **ENVIRONMENT, **self.environments[place]},
            )
        child = self._children[place] = _Child(process, place)
        threading.Thread(target=self._listen, args=(child,), daemon=True).start()
        return child

    def _give(self, child: _Child, job: Job | None) -> None:
        """Send a run to a process, or the end of its work."""
        pipe = child.process.stdin
        assert pipe is not None
        with contextlib.suppress(OSError):  # it has just died, and its end will be heard of
            if job is None:
                pipe.close()
            else:
                pickle.dump(job, pipe)
                pipe.flush()

    def _listen(self, child: _Child) -> None:
        assert child.process.stdout is not None
        # The last event may be cut by the process's death.
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                self._heard.put((child, pickle.load(child.process.stdout)))
        self._heard.put((child, None))

    def _told(self, child: _Child, event: Event) -> Iterator[Event]:
        child.is_heard = True
        if event.kind not in ("progress", "say"):
            child.has.discard(event.name)
        if event.name:
            yield event

    def _ended(self, child: _Child) -> Iterator[Event]:
        """Let another worker have the runs that a dead one had."""
        code = child.process.wait()
        del self._children[child.place]
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
        if code and not child.is_heard and not self._is_stopping:
            raise TrainingError(f"a worker ended by {how} before its first run; see {self.log}")
        for name in child.has:
            lost = Event("lost", name, (f"its worker ended by {how}, see {self.log}", RETRIES))
            yield Event("put_back", name) if self._is_stopping else lost
