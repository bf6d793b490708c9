"""Checkpoints of a learner's task, so that it can be continued."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from distillmatch.engine import Snapshot
from distillmatch.errors import LearnerError
from distillmatch.runs.checkpoints import Checkpoint, Checkpoints
from distillmatch.runs.interruption import StopRequest
from distillmatch.sources.walk import shown


@dataclass
class Keeper:
    """Keeps the snapshots of a task in the learner's folder, and stops the task when asked to.

    `begin` is called once all images are read: from then on a signal waits for a snapshot. An
    unfinished task continues from `snapshot`.
    """

    folder: Path
    checkpoints: Checkpoints
    seconds: float
    stop: StopRequest
    tell: Callable[[str], None]
    drop: bool
    begin: Callable[[], None]
    fingerprint: str = ""
    snapshot: Snapshot | None = None
    saved_at: float = field(default_factory=time.monotonic)

    def start(self, fingerprint: str) -> None:
        """Find where the task stands; refuse a checkpoint of a task with other images."""
        self.begin()
        self.fingerprint = fingerprint
        if self.drop:
            self.checkpoints.clear()
        checkpoint, problems = self.checkpoints.load()
        for problem in problems:
            self.tell(f"{problem}; {'it' if checkpoint is None else 'a later one'} is not used")
        if checkpoint is None:
            return
        if checkpoint.values["fingerprint"] != fingerprint:
            raise LearnerError(
                f"{shown(self.folder)}: an unfinished task was begun with other images or "
                "settings; give the same to continue it, or drop it (drop_unfinished=True, "
                "--drop-unfinished)"
            )
        self.tell(f"continuing the unfinished task in {shown(self.folder)}")
        self.snapshot = Snapshot(checkpoint.values["engine"], checkpoint.tensors)

    def pause(self, take: Callable[[], Snapshot]) -> None:
        """Write a checkpoint if one is due, or if the task is to stop."""
        due = self.seconds and time.monotonic() - self.saved_at >= self.seconds
        if due or self.stop.asked:
            snapshot = take()
            values = {"fingerprint": self.fingerprint, "engine": snapshot.values}
            self.checkpoints.save(Checkpoint(values, snapshot.tensors))
            self.saved_at = time.monotonic()
        if self.stop.asked:
            raise self.stop.interrupted(f"in the midst of a task; {unchanged(self.folder)}")


def unchanged(folder: Path) -> str:
    """Say that an interruption lost nothing."""
    return f"{shown(folder)} is as it was before it, and the same command continues"
