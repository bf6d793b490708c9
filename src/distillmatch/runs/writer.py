"""Checkpoints written by a thread of their own, beside the training that goes on."""

import queue
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from distillmatch.runs.checkpoints import Checkpoint
from distillmatch.runs.folder import RunFolder

THREAD = "distillmatch checkpoint"
HURRY_SECONDS = 1.0
"""So long a write is waited for where a second signal ends the process."""


class CheckpointWriter:
    """Within its block, writes checkpoints to a folder, one at a time and in the order they come.

    A checkpoint is the state at the moment when it is given, and must not change from then on. What
    became of its write is heard where the run asks for it, by `look` or `settle`, and noted there:
    a log has one writer. The block ends when no write is under way.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._thread: threading.Thread | None = None
        self._place = ""
        # A signal's handler may raise anywhere; this queue's lock is never left behind by that.
        self._outcomes: queue.SimpleQueue[Path | BaseException] = queue.SimpleQueue()

    def begin(self, checkpoint: Checkpoint, place: str) -> None:
        """Begin to write, once the write before it is done; `place` says how far the run is."""
        self.settle()
        # A run that goes on from here notes what comes after: what came before must be in the log.
        self.folder.log.flush()
        self._place = place
        # A daemon, for a disk that hangs must not keep the process.
        thread = threading.Thread(target=self._write, args=(checkpoint,), name=THREAD, daemon=True)
        self._thread = thread  # before it starts: a signal may come in between
        thread.start()

    def look(self) -> None:
        """Raise what went wrong with the last write, if that is known by now."""
        if not self._outcomes.empty():
            self.settle()

    def settle(self) -> None:
        """Wait until no write is under way, and raise what went wrong with it."""
        if self._thread is None:
            return
        outcome = self._outcomes.get()
        self._thread.join()
        self._thread = None
        if isinstance(outcome, BaseException):
            raise outcome
        self._note(outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread = self._thread
        if thread is None or not (thread.is_alive() or not self._outcomes.empty()):
            return
        # A stop where the run can be continued has settled; what interrupts a write is a second
        # signal.
        hurries = isinstance(error, KeyboardInterrupt)
        try:
            outcome = self._outcomes.get(timeout=HURRY_SECONDS if hurries else None)
        except queue.Empty:
            self.folder.checkpoints.abandon()
            return
        thread.join()
        # A write that failed is of no account any more: either the run is finished, and its result
        # written, or it ends by another error.
        if isinstance(outcome, Path):
            self._note(outcome)

    def _write(self, checkpoint: Checkpoint) -> None:
        try:
            self._outcomes.put(self.folder.checkpoints.save(checkpoint))
        except BaseException as error:  # the run's thread is to raise it, whatever it is
            self._outcomes.put(error)

    def _note(self, path: Path) -> None:
        self.folder.log.note("checkpoint", file=path.name, place=self._place)
