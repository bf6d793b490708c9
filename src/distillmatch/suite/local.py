"""The local engine: worker processes on this machine, one a core or one a GPU."""

import contextlib
import json
import os
import queue as queues
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distillmatch.errors import ConfigError, TrainingError
from distillmatch.runs.interruption import STOPPING, StopRequest
from distillmatch.runs.side_by_side import CHECKPOINT_SECONDS, MOST_AT_ONCE
from distillmatch.suite.queue import Queue
from distillmatch.suite.worker import ENDS, ENVIRONMENT, encode_job

TURN_SECONDS = 0.25
LOG = "workers.log"
WORKER = "distillmatch.suite.worker"
RETRIES = 1
"""Here a worker dies by its run more likely than by chance."""
Show = Callable[[Queue], None]


@dataclass(frozen=True)
class Crew:
    """The processes to start: what each finds in its environment, and its runs at once."""

    environments: tuple[dict[str, str], ...]
    at_once: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.at_once <= MOST_AT_ONCE:
            raise ConfigError(
                f"runs at once on a GPU must be 1 to {MOST_AT_ONCE}, not {self.at_once}"
            )

    @classmethod
    def on_cpu(cls, jobs: int | None = None) -> "Crew":
        """Return one process a core, or `jobs` of them."""
        return cls(({},) * (jobs or os.cpu_count() or 1))

    @classmethod
    def on_gpus(cls, gpus: int, jobs: int | None = None, runs_per_gpu: int = 1) -> "Crew":
        """Return one process a GPU, or `jobs` of them that share the GPUs."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(number) for number in range(gpus)]
        chosen = [names[number % gpus] for number in range(jobs or gpus)]
        return cls(tuple({"CUDA_VISIBLE_DEVICES": name} for name in chosen), runs_per_gpu)


@dataclass(eq=False)
class Child:
    """A worker process, the runs it has, and how many more it has asked for."""

    process: subprocess.Popen[str]
    place: int
    reader: threading.Thread | None = None
    has: set[str] = field(default_factory=set)
    wants: int = 0
    served: bool = False


class LocalEngine:
    """Works off a queue by worker processes; `show` is given the queue a few times a second.

    The workers' sessions are their own, so that Ctrl-C reaches this process alone, which asks them
    to stop; they write checkpoints, and the same call goes on from them.
    """

    def __init__(
        self,
        queue: Queue,
        crew: Crew,
        log_folder: Path,
        show: Show,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ) -> None:
        self.queue = queue
        self.crew = crew
        self.log = log_folder / LOG
        self.show = show
        self.checkpoint_seconds = checkpoint_seconds
        self.children: list[Child] = []
        self._events: queues.SimpleQueue[tuple[Child, dict[str, Any] | None]] = queues.SimpleQueue()

    def run(self) -> None:
        """Work until all runs are done or have failed, or until a signal asks to stop."""
        self.queue.gather()
        self.queue.check_sources()
        with StopRequest() as stop:
            try:
                while not self.queue.over and stop.signal_number is None:
                    self._start_missing()
                    self._turn()
                if stop.signal_number is not None and not self.queue.over:
                    self._stop_runs(stop.signal_number)
            finally:
                self._end()

    def _turn(self) -> None:
        """Hear what the workers say, for a moment, and give runs to those that want some."""
        with contextlib.suppress(queues.Empty):
            child, event = self._events.get(timeout=TURN_SECONDS)
            while True:
                self._ended(child) if event is None else self._handle(child, event)
                child, event = self._events.get_nowait()
        self.queue.look_elsewhere()
        for child in self.children:
            self._serve(child)
        self.queue.tell_of_waiting()
        self.show(self.queue)

    def _handle(self, child: Child, event: dict[str, Any]) -> None:
        if event["event"] == "want":
            child.wants += 1
            return
        if event["event"] in ENDS:
            child.has.discard(event["name"])
        self.queue.handle(event)

    def _serve(self, child: Child) -> None:
        while child.wants and (job := self.queue.take()) is not None:
            child.wants -= 1
            child.has.add(job.name)
            child.served = True
            assert child.process.stdin is not None
            with contextlib.suppress(OSError):  # it has just died, and its end will be heard of
                child.process.stdin.write(json.dumps(encode_job(job)) + "\n")
                child.process.stdin.flush()

    def _start_missing(self) -> None:
        """Start as many processes as have something to do."""
        places = set(range(len(self.crew.environments))) - {c.place for c in self.children}
        free = sum(self.crew.at_once - len(child.has) for child in self.children)
        for place in sorted(places):
            if self.queue.count("waiting") <= free:
                return
            self._start(place)
            free += self.crew.at_once

    def _start(self, place: int) -> None:
        command = [sys.executable, "-m", WORKER]
        command += [str(self.crew.at_once), str(self.checkpoint_seconds)]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, **ENVIRONMENT, **self.crew.environments[place]},
            )
        child = Child(process, place)
        child.reader = threading.Thread(target=self._listen, args=(child,), daemon=True)
        child.reader.start()
        self.children.append(child)

    def _listen(self, child: Child) -> None:
        assert child.process.stdout is not None
        for line in child.process.stdout:
            with contextlib.suppress(ValueError):  # a line that was cut by the process's death
                self._events.put((child, json.loads(line)))
        self._events.put((child, None))

    def _ended(self, child: Child, stopping: bool = False) -> None:
        """Let another worker have the runs that a dead one had."""
        code = child.process.wait()
        self.children.remove(child)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
        for name in child.has:
            if stopping:
                self.queue.put_back(name)
            else:
                self.queue.lost(name, f"its worker ended by {how}, see {self.log}", RETRIES)
        if code and not child.served and not stopping:
            raise TrainingError(f"a worker ended by {how} before its first run; see {self.log}")

    def _stop_runs(self, number: int) -> None:
        """Have every run write its checkpoint, and say how to go on."""
        self.queue.tell(STOPPING)
        for child in self.children:
            child.process.terminate()
            self._close_input(child)
        while self.children:
            child, event = self._events.get()
            if event is None:
                self._ended(child, stopping=True)
            elif event["event"] != "want" and event.get("sentence") != STOPPING:
                self._handle(child, event)
        raise self.queue.interrupted(number)

    def _end(self) -> None:
        """Leave no process behind; only after an error are there any that still have runs."""
        for child in self.children:
            child.process.terminate()
            self._close_input(child)
        for child in self.children:
            child.process.wait()
            assert child.reader is not None
            child.reader.join()
        self.children.clear()

    def _close_input(self, child: Child) -> None:
        assert child.process.stdin is not None
        with contextlib.suppress(OSError):
            child.process.stdin.close()
