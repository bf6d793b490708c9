"""The queue of a suite: which runs are left, who has them, and what became of them.

A run belongs to whoever holds the lock of its folder. Each process that works off a suite has a
queue of its own over the same folders, so that any number of them share the work.
"""

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from distillmatch.config import RunConfig
from distillmatch.errors import LockedError, ResultError
from distillmatch.files import write_atomically
from distillmatch.methods import with_options
from distillmatch.runs import read_result
from distillmatch.runs.folder import RESULT, differing_keys
from distillmatch.runs.lock import is_held
from distillmatch.runs.side_by_side import Job, source_key
from distillmatch.runs.threads import CONTINUED
from distillmatch.sources import check_images_available
from distillmatch.suite.ledger import Ledger

ERROR = "error.txt"
"""In the folder of a run that failed: the reason as one line, then where it was raised."""
LOOK_SECONDS = 1.0
State = Literal["waiting", "running", "elsewhere", "done", "failed"]

METHOD_COSTS = {"base": 1.0, "e2e": 1.9, "dr": 2.8, "gd": 3.6, "dm": 3.2}
"""Time of a run as a multiple of Base's, alone on one GPU. The order of runs and the estimate of
the time left depend on it.
"""


class Event(NamedTuple):
    """What a worker tells of a run: the method of `Queue` that takes it in, and its arguments."""

    kind: Literal["progress", "finished", "failed", "locked", "put_back", "lost", "say"]
    name: str
    details: tuple[Any, ...] = ()


@dataclass
class Entry:
    """One run of the queue and how it stands.

    `share` is how much of it is done, from 0 to 1, and `found` how much of that no worker here did.
    """

    job: Job
    cost: float
    state: State = "waiting"
    share: float = 0.0
    found: float = 0.0
    has_begun: bool = False
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
        self,
        jobs: Sequence[Job],
        ledger: Ledger | None,
        tell: Callable[[str], None],
        *,
        in_order: bool = False,
    ) -> None:
        ordered = jobs if in_order else sorted(jobs, key=lambda job: -expected_cost(job.config))
        self.entries = {job.name: Entry(job, expected_cost(job.config)) for job in ordered}
        self.ledger = ledger
        self.tell = tell
        self._looked_at = float("-inf")
        self._is_waiting_told = False
        for entry in self.entries.values():
            entry.error_seen = _written_at(error_file(entry.job))
            if ledger is not None and ledger.find(with_options(entry.job.config)) is not None:
                _set_done(entry)
            else:
                _found_result(entry)
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

    def gather(self) -> None:
        """Keep what an earlier call finished without getting to keep it."""
        for entry in self.entries.values():
            if entry.state == "waiting":
                self._gather(entry)

    def check_sources(self) -> None:
        """Refuse to begin where images that a run needs cannot be had; ask each source once."""
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

    def handle(self, event: Event) -> None:
        """Take in what a worker tells."""
        getattr(self, event.kind)(event.name, *event.details)

    def say(self, name: str, sentence: str) -> None:
        """Pass on what a run has to say."""
        self.tell(sentence)

    def progress(self, name: str, share: float, found: float) -> None:
        """Note how much of a run is done, and how much was done before its worker took it."""
        entry = self.entries[name]
        entry.share, entry.found, entry.has_begun = share, found, True

    def finished(self, name: str, result: dict[str, Any] | None = None) -> None:
        """Keep a run's result, which is in its folder if it is not given."""
        entry = self.entries[name]
        if self.ledger is not None:
            self.ledger.add(result or read_result(entry.job.out))
        error_file(entry.job).unlink(missing_ok=True)
        _set_done(entry)

    def failed(self, name: str, reason: str, trace: str = "") -> None:
        """Give a run up, and leave in its folder why."""
        entry = self.entries[name]
        text = f"{reason}\n\n{trace}"
        write_atomically(error_file(entry.job), text, "writing why a run failed")
        self._give_up(entry, reason)

    def locked(self, name: str) -> None:
        """Note that another process was faster."""
        self.entries[name].state = "elsewhere"

    def put_back(self, name: str) -> None:
        """Let a run that was stopped, not lost, be taken again."""
        self.entries[name].state = "waiting"

    def lost(self, name: str, why: str, retries: int) -> None:
        """Hand a run out again that went down with its worker, so often and no more."""
        entry = self.entries[name]
        entry.losses += 1
        if entry.losses <= retries:
            self.put_back(name)
            self.tell(f"{name}: {why}; another worker goes on with it")
        else:
            self.failed(name, f"{why} ({entry.losses} times)")

    def work(self) -> tuple[float, float, float]:
        """Return the cost of all runs, of what is done, and of what no worker here did of that."""
        entries = [entry for entry in self.entries.values() if entry.state != "failed"]
        return (
            sum(entry.cost for entry in entries),
            sum(entry.cost * entry.share for entry in entries),
            sum(entry.cost * entry.found for entry in entries),
        )

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
        result = _found_result(entry)
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


class ReportedProgress:
    """Passes on which share of a run is done, not more often than anyone looks."""

    def __init__(self, name: str, send: Callable[[Event], None], seconds: float) -> None:
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
        """Have nothing to end."""

    def _report(self) -> None:
        self.sent_at, total = time.monotonic(), self.total or 1.0
        shares = min(self.done / total, 1.0), min(self.found / total, 1.0)
        self.send(Event("progress", self.name, shares))


def failure(job: Job, error: Exception) -> Event:
    """Return the event of a run that could not go on."""
    if isinstance(error, LockedError):
        return Event("locked", job.name)
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return Event("failed", job.name, (reason, "".join(traceback.format_exception(error))))


def error_file(job: Job) -> Path:
    """Return where a failed run's reason stands in full."""
    return job.out / ERROR


def _found_result(entry: Entry) -> dict[str, Any] | None:
    """Return what a run's folder has of its result, and note how much that is."""
    if not (entry.job.out / RESULT).exists():
        return None
    try:
        result = read_result(entry.job.out)
    except ResultError:
        return None  # whoever runs it says what is wrong
    if differing_keys(result["config"], with_options(entry.job.config)):
        return None
    if not entry.has_begun:
        entry.share = entry.found = len(result["tasks"]) / len(result["task_sizes"])
    return result


def _set_done(entry: Entry) -> None:
    if entry.state != "running":
        entry.found = 1.0
    entry.state, entry.share = "done", 1.0


def _written_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
