"""The queue of a suite: which runs are left, who has them, and what became of them.

A run belongs to whoever holds the lock of its folder. Each process that works off a suite has a
queue of its own over the same folders, so that any number of them share the work.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from distillmatch.config import RunConfig
from distillmatch.files import write_atomically
from distillmatch.methods import with_options
from distillmatch.runs.folder import differing_keys
from distillmatch.runs.interruption import StopRequest
from distillmatch.runs.lock import is_held
from distillmatch.runs.result import found_result
from distillmatch.runs.side_by_side import Job, source_key
from distillmatch.sources import check_images_available
from distillmatch.suite.ledger import Ledger
from distillmatch.suite.local import LocalWorkers
from distillmatch.suite.ray_engine import RayWorkers
from distillmatch.suite.worker import Event

ERROR = "error.txt"
"""In the folder of a run that failed: the reason as one line, then where it was raised."""
LOOK_SECONDS, TURN_SECONDS = 1.0, 0.25
State = Literal["waiting", "running", "elsewhere", "done", "failed"]
METHOD_COSTS = {"base": 1.0, "e2e": 1.9, "dr": 2.8, "gd": 3.6, "dm": 3.2}
"""Time of a run as a multiple of Base's, alone on one GPU. The order of runs and the estimate of
the time left depend on it.
"""


def expected_cost(config: RunConfig) -> float:
    """Return how long a run takes beside others, as far as its configuration tells."""
    times = METHOD_COSTS.get(config.method, METHOD_COSTS["dm"])
    if config.method.startswith("offline"):
        # Stage n learns the images of the first n tasks anew.
        tasks = len(config.task_sizes or ()) or config.tasks or 10
        times = METHOD_COSTS["base" if config.method == "offline" else "dm"] * (tasks + 1) / 2
    return times * config.epochs


@dataclass
class Entry:
    """One run of the queue and how it stands; `share` is how much of it is done, from 0 to 1."""

    job: Job
    cost: float
    error_seen: int | None
    state: State = "waiting"
    share: float = 0.0
    has_begun: bool = False
    losses: int = 0
    reason: str = ""

    def result(self) -> dict[str, Any] | None:
        """Return what the run's folder has of its result, and note how much that is.

        Whether a result is of the saved stream that a job names, its worker finds out.
        """
        result = None if self.job.stream is not None else found_result(self.job.out)
        if result is None or differing_keys(result["config"], with_options(self.job.config)):
            return None
        if not self.has_begun:
            self.share = len(result["tasks"]) / len(result["task_sizes"])
        return result


class Queue:
    """Hands out runs, longest first, and keeps how each of them stands.

    Without a ledger, results stay in the runs' folders alone. A run whose worker was lost is handed
    out again; one that failed is not.
    """

    def __init__(
        self, jobs: Sequence[Job], ledger: Ledger | None, tell: Callable[[str], None]
    ) -> None:
        entries = [
            Entry(job, expected_cost(job.config), _written_at(error_file(job))) for job in jobs
        ]
        entries.sort(key=lambda entry: -entry.cost)
        self.entries = {entry.job.name: entry for entry in entries}
        self.ledger = ledger
        self.tell = tell
        self._looked_at = float("-inf")
        self._is_waiting_told = False
        for entry in entries:
            if ledger is not None and ledger.find(with_options(entry.job.config)) is not None:
                entry.state, entry.share = "done", 1.0
            else:
                entry.result()
                entry.state = "elsewhere" if is_held(entry.job.out) else "waiting"

    def count(self, *states: State) -> int:
        """Return how many runs are in one of these states."""
        return sum(entry.state in states for entry in self.entries.values())

    def names(self, state: State) -> list[str]:
        """Return the names of the runs in a state."""
        return [name for name, entry in self.entries.items() if entry.state == state]

    @property
    def over(self) -> bool:
        """Whether nothing is left to be done, here or elsewhere."""
        return not self.count("waiting", "running", "elsewhere")

    def work(self) -> tuple[float, float]:
        """Return the cost of all runs but failed ones, and of what is done of them."""
        entries = [entry for entry in self.entries.values() if entry.state != "failed"]
        done = sum(entry.cost * entry.share for entry in entries)
        return sum(entry.cost for entry in entries), done

    def check_sources(self) -> None:
        """Refuse to begin where images that a run needs cannot be had; ask each source once."""
        waiting = [
            entry.job.config
            for entry in self.entries.values()
            if entry.state == "waiting" and not self._gather(entry)
        ]
        for config in {source_key(config): config for config in waiting}.values():
            check_images_available(config)

    def take(self) -> Job | None:
        """Return the next run that nobody has, if there is one."""
        for entry in self.entries.values():
            if entry.state != "waiting":
                continue
            # In this order: who holds the lock now may be done with it a moment later.
            if is_held(entry.job.out):
                entry.state = "elsewhere"
            elif not self._gather(entry):
                entry.state = "running"
                return entry.job
        return None

    def look_elsewhere(self) -> None:
        """See which runs other processes have taken, and what became of those they had."""
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = time.monotonic()
            for entry in self.entries.values():
                if entry.state in ("waiting", "elsewhere"):
                    held = is_held(entry.job.out)
                    if not self._gather(entry):
                        self._look_at_other(entry, held)
        elsewhere = self.names("elsewhere")
        is_waiting = bool(elsewhere) and not self.count("waiting", "running")
        if is_waiting and not self._is_waiting_told:
            self.tell(f"waiting for runs of other processes: {', '.join(elsewhere)}")
        self._is_waiting_told = is_waiting

    def handle(self, event: Event) -> None:
        """Note what a worker reports, and keep results and why runs failed."""
        if event.kind == "say":
            self.tell(*event.details)
            return
        entry = self.entries[event.name]
        match event.kind:
            case "progress":
                (entry.share,), entry.has_begun = event.details, True
            case "finished":
                self._finish(entry, *event.details)
            case "failed":
                self._fail(entry, *event.details)
            case "locked":  # another process was faster
                entry.state = "elsewhere"
            case "put_back":  # it was stopped, not lost
                entry.state = "waiting"
            case "lost":  # it went down with its worker
                why, retries = event.details
                entry.losses += 1
                if entry.losses > retries:
                    self._fail(entry, f"{why} ({entry.losses} times)")
                else:
                    entry.state = "waiting"
                    self.tell(f"{event.name}: {why}; another worker goes on with it")

    def _finish(self, entry: Entry, result: dict[str, Any]) -> None:
        if self.ledger is not None:
            self.ledger.add(result)
        error_file(entry.job).unlink(missing_ok=True)
        entry.state, entry.share = "done", 1.0

    def _fail(self, entry: Entry, reason: str, trace: str = "") -> None:
        text = f"{reason}\n\n{trace}"
        write_atomically(error_file(entry.job), text, "writing why a run failed")
        self._give_up(entry, reason)

    def _look_at_other(self, entry: Entry, held: bool) -> None:
        """Take over a run that no other process has any more, unless it failed there."""
        error = error_file(entry.job)
        if held:
            entry.state = "elsewhere"
        elif _written_at(error) == entry.error_seen:
            entry.state = "waiting"
        else:
            reason = error.read_text(encoding="utf-8").partition("\n")[0]
            self._give_up(entry, f"{reason} (in another process)")

    def _gather(self, entry: Entry) -> bool:
        """Keep the whole result that a run's folder has; return whether it has one."""
        result = entry.result()
        if result is None or not result["complete"]:
            return False
        self._finish(entry, result)
        return True

    def _give_up(self, entry: Entry, reason: str) -> None:
        alike = (e.job.name for e in self.entries.values() if reason and e.reason == reason)
        first = next(alike, None)
        entry.state, entry.reason = "failed", reason
        self.tell(f"{entry.job.name} failed{f' as {first} did' if first else f': {reason}'}")


def work_off(
    queue: Queue, workers: LocalWorkers | RayWorkers, show: Callable[[Queue], None]
) -> None:
    """Do the runs of a queue until all are done or have failed, or a signal asks to stop.

    `show` is given the queue a few times a second. Runs that are stopped write checkpoints, and the
    same call resumes them.
    """
    with closing(workers):
        if isinstance(workers, LocalWorkers):
            queue.check_sources()
        with StopRequest(queue.tell) as stop:
            while not queue.over and not stop.asked:
                while workers.has_room() and (job := queue.take()) is not None:
                    workers.start(job)
                for event in workers.events(TURN_SECONDS):
                    queue.handle(event)
                queue.look_elsewhere()
                show(queue)
            if not stop.asked or queue.over:
                return
            for event in workers.stop():
                queue.handle(event)
            left = queue.count("waiting", "running", "elsewhere")
            runs = f"{left} run{'s' if left != 1 else ''}"
            raise stop.interrupted(f"with {runs} left; the same command continues from there")


def error_file(job: Job) -> Path:
    """Return where a failed run's reason stands in full."""
    return job.out / ERROR


def _written_at(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None
