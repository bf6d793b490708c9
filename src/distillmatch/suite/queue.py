"""The queue of a suite: which runs are left, who has them, and what became of them.

A run belongs to whoever holds the lock of its folder. Each process that works off a suite has a
queue of its own over the same folders, so that any number of them share the work.
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from distillmatch.config import RunConfig
from distillmatch.errors import ResultError
from distillmatch.files import write_atomically
from distillmatch.methods import with_options
from distillmatch.runs import Interrupted, read_result
from distillmatch.runs.folder import RESULT, differing_keys
from distillmatch.runs.lock import is_held
from distillmatch.runs.side_by_side import Job, source_key
from distillmatch.sources import check_images_available
from distillmatch.suite.ledger import Ledger

ERROR = "error.txt"
"""In the folder of a run that failed: the reason as one line, then where it was raised."""
LOOK_SECONDS = 1.0
State = Literal["waiting", "running", "elsewhere", "done", "failed"]
Tell = Callable[[str], None]

METHOD_COSTS = {"base": 1.0, "e2e": 1.9, "dr": 2.8, "gd": 3.6, "dm": 3.2}
"""Time of a run as a multiple of Base's, alone on one GPU. DM's and DR's are of whole runs
(results/), E2E's and GD's made of DR's parts. Only the order of runs and the first estimate of the
time left depend on it.
"""


@dataclass
class Entry:
    """One run of the queue and how it stands.

    `share` is how much of it is done, from 0 to 1. `work` is all of it in the engine's units, once
    those are known, and `worked` what the worker that has it did of that.
    """

    job: Job
    cost: float
    state: State = "waiting"
    share: float = 0.0
    work: float | None = None
    worked: float = 0.0
    losses: int = 0
    reason: str = ""
    error_seen: int | None = None


def expected_cost(config: RunConfig) -> float:
    """Return how long a run takes beside others, as far as its configuration tells."""
    tasks = len(config.task_sizes or ()) or config.tasks or 10
    if config.method.startswith("offline"):
        # Stage n learns the images of the first n tasks anew.
        times = METHOD_COSTS["base" if config.method == "offline" else "dm"] * (tasks + 1) / 2
    else:
        times = METHOD_COSTS.get(config.method, METHOD_COSTS["dm"])
    return times * config.epochs


class Queue:
    """Hands out runs, longest first or in the order given, and keeps how each of them stands.

    Without a ledger, results stay in the runs' folders alone. A run whose worker was lost is handed
    out again; one that failed is not.
    """

    def __init__(
        self, jobs: Sequence[Job], ledger: Ledger | None, tell: Tell, *, in_order: bool = False
    ) -> None:
        ordered = jobs if in_order else sorted(jobs, key=lambda job: -expected_cost(job.config))
        self.entries = {job.name: Entry(job, expected_cost(job.config)) for job in ordered}
        self.ledger = ledger
        self.tell = tell
        self._looked_at = float("-inf")
        self._worked = 0.0
        self._waiting_told = False
        for entry in self.entries.values():
            entry.error_seen = _written_at(error_file(entry.job))
            if ledger is not None and ledger.find(with_options(entry.job.config)) is not None:
                self._done(entry)
            else:
                _found(entry)
                entry.state = "elsewhere" if is_held(entry.job.out) else "waiting"

    def count(self, *states: State) -> int:
        """Return how many runs are in one of these states."""
        return sum(entry.state in states for entry in self.entries.values())

    def names(self, state: State) -> list[str]:
        """Return the names of the runs in a state."""
        return [name for name, entry in self.entries.items() if entry.state == state]

    @property
    def over(self) -> bool:
        """Tell whether nothing is left to be done, here or elsewhere."""
        return not self.count("waiting", "running", "elsewhere")

    def gather(self) -> None:
        """Keep what an earlier call finished without getting to keep it."""
        for entry in self.entries.values():
            if entry.state == "waiting":
                self._gather(entry)

    def check_sources(self) -> None:
        """Refuse to begin where images that a run needs cannot be had, as far as sources can tell.

        Each source is asked once, not by every run.
        """
        waiting = [e.job.config for e in self.entries.values() if e.state == "waiting"]
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

    def handle(self, event: dict[str, Any]) -> None:
        """Take in what a worker tells of a run, or of all its work."""
        kind, name = event["event"], event.get("name", "")
        if kind == "tell":
            self.tell(event["sentence"])
        elif kind == "progress":
            self.progress(name, event["total"], event["left"], event["worked"])
        elif kind == "finished":
            result = event.get("result")
            self.finished(name, result or read_result(self.entries[name].job.out))
        elif kind == "locked":  # another process was faster
            self.entries[name].state = "elsewhere"
        elif kind == "stopped":
            self.put_back(name)
        else:
            self.failed(name, event["reason"], event["trace"])

    def progress(self, name: str, total: float, left: float, worked: float) -> None:
        """Note how much of a run is left, in the engine's units, and what its worker did of it."""
        entry = self.entries[name]
        self._worked += worked - entry.worked
        entry.work, entry.worked = total, worked
        entry.share = 1.0 - left / total if total else 0.0

    def work(self) -> tuple[float, float]:
        """Return what workers of this queue did and what is left, together, and what they did.

        Runs that have not begun are taken to cost beside the others what `expected_cost` says.
        """
        known = [entry for entry in self.entries.values() if entry.work is not None]
        scale = sum(e.work or 0.0 for e in known) / sum(e.cost for e in known) if known else 1.0
        left = 0.0
        for entry in self.entries.values():
            if entry.state not in ("done", "failed"):
                work = entry.cost * scale if entry.work is None else entry.work
                left += work * (1.0 - entry.share)
        return self._worked + left, self._worked

    def finished(self, name: str, result: dict[str, Any]) -> None:
        """Keep a run's result."""
        entry = self.entries[name]
        if self.ledger is not None:
            self.ledger.add(result)
        error_file(entry.job).unlink(missing_ok=True)
        self._done(entry)

    def failed(self, name: str, reason: str, trace: str = "") -> None:
        """Give a run up, and leave in its folder why."""
        entry = self.entries[name]
        text = f"{reason}\n\n{trace}"
        write_atomically(error_file(entry.job), text, "writing why a run failed")
        self._give_up(entry, reason)

    def put_back(self, name: str) -> None:
        """Let a run that was stopped, not lost, be taken again."""
        entry = self.entries[name]
        entry.state, entry.worked = "waiting", 0.0

    def lost(self, name: str, why: str, retries: int) -> None:
        """Hand a run out again that went down with its worker, so often and no more."""
        entry = self.entries[name]
        entry.losses += 1
        if entry.losses <= retries:
            self.put_back(name)
            self.tell(f"{name}: {why}; another worker goes on with it")
            return
        self.failed(name, f"{why} ({entry.losses} times)")

    def look_elsewhere(self) -> None:
        """See which runs other processes have taken, and what became of those they had."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        for entry in self.entries.values():
            if entry.state not in ("waiting", "elsewhere"):
                continue
            held = is_held(entry.job.out)
            if self._gather(entry):
                continue
            if held:
                entry.state = "elsewhere"
            else:
                self._look_at_left(entry)

    def tell_of_waiting(self) -> None:
        """Say, once each time, that only others still have runs under way."""
        elsewhere = self.names("elsewhere")
        alone = bool(elsewhere) and not self.count("waiting", "running")
        if alone and not self._waiting_told:
            self.tell(f"waiting for runs of other processes: {', '.join(elsewhere)}")
        self._waiting_told = alone

    def interrupted(self, number: int) -> Interrupted:
        """Return what to raise after a signal has stopped the runs."""
        left = self.count("waiting", "running", "elsewhere")
        name = signal.Signals(number).name
        return Interrupted(
            f"stopped by {name}, {left} run{'s' if left != 1 else ''} left; "
            "the same command continues from there",
            number,
        )

    def _look_at_left(self, entry: Entry) -> None:
        """Take over a run that no other process has any more, unless it failed there."""
        error = error_file(entry.job)
        if _written_at(error) == entry.error_seen:
            entry.state = "waiting"
        else:
            reason = error.read_text(encoding="utf-8").partition("\n")[0]
            self._give_up(entry, f"{reason} (in another process)")

    def _gather(self, entry: Entry) -> bool:
        """Keep the whole result that a run's folder has; tell whether it has one."""
        result = _found(entry)
        if result is None or not result["complete"]:
            return False
        self.finished(entry.job.name, result)
        return True

    def _give_up(self, entry: Entry, reason: str) -> None:
        alike = (e.job.name for e in self.entries.values() if reason and e.reason == reason)
        first = next(alike, None)
        entry.state, entry.reason = "failed", reason
        said = f": {reason}" if first is None else f" as {first} did"
        self.tell(f"{entry.job.name} failed{said}")

    def _done(self, entry: Entry) -> None:
        if entry.state == "running":  # it tells how far it is from time to time only
            self._worked += (entry.work or 0.0) * (1.0 - entry.share)
        entry.state, entry.share = "done", 1.0


def _found(entry: Entry) -> dict[str, Any] | None:
    """Return what a run's folder has of its result, and note how much that is."""
    if not (entry.job.out / RESULT).exists():
        return None
    try:
        result = read_result(entry.job.out)
    except ResultError:
        return None  # whoever runs it says what is wrong
    if differing_keys(result["config"], with_options(entry.job.config)):
        return None
    entry.share = max(entry.share, len(result["tasks"]) / len(result["task_sizes"]))
    return result


def error_file(job: Job) -> Path:
    """Return where a failed run's reason stands in full."""
    return job.out / ERROR


def _written_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
