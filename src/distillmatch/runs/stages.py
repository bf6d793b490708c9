"""Independent tasks, such as the stages of the bound, learned side by side and joined."""

import json
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from distillmatch.engine.outcome import Underway
from distillmatch.files import write_atomically
from distillmatch.runs.folder import STAGE, STAGE_FORMAT, STAGE_VERSION, Found, RunFolder
from distillmatch.runs.lock import NAME as LOCK
from distillmatch.runs.log import LOG, history, read_log, steps_so_far
from distillmatch.runs.result import task_row
from distillmatch.runs.session import Record, Session
from distillmatch.runs.side_by_side import SharedProgress, Work, work_side_by_side


@dataclass(eq=False)
class StagedSession(Session):
    """Learns each task in a thread and a folder of its own, the longest first.

    The stages that are finished from the first on make the result, as tasks in a row do; `stages/`
    in the run's folder is removed at the end.
    """

    at_once: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._adding = threading.RLock()  # taken again by a signal handler that tells something
        self._waiting: dict[int, Record] = {}
        self._joined: Record = {}

    def resume(self, found: Found) -> None:
        """Count in what was done; a task that was begun among tasks in a row starts over."""
        if found.checkpoint is not None:
            self._take_up(found.checkpoint.values)
        heads = [self._before, *found.stages.values()]
        self._before["seconds"] = max(head["seconds"] for head in heads)
        self._before["runs_at_once"] = max(head.get("runs_at_once", 1) for head in heads)
        if self.folder is None:
            return
        finished = self.tally.tasks
        if found == Found():
            self.folder.log.note("begun", **self._described())
        else:
            steps = steps_so_far(Underway(len(finished)), finished)
            self.folder.log.note("continued", task=len(finished) + 1, steps=steps)
        for number in self.engine.tasks:
            # The folder of the run is ours, so what lies here was left behind.
            (self.folder.stage(number) / LOCK).unlink(missing_ok=True)
            record = found.stages.get(number, {})
            if "row" in record and number >= len(finished):
                self._add(number, record)

    def run(self) -> Record:
        """Learn the tasks that are left, and return the result."""
        finished = len(self.tally.tasks)
        left = [n for n in self.engine.tasks if n >= finished and n not in self._waiting]
        progress = SharedProgress(self.engine.trainer.progress, len(self.engine.tasks))
        done = [number for number in self.engine.tasks if number not in left]
        progress.start(self.engine.work_of(self.engine.tasks), self.engine.work_of(done))

        def next_stage() -> Work | None:
            return partial(self._learn, left.pop(), progress) if left else None

        tell = self._tell if self.at_once == 1 else None
        with self._stopping(tell) as self.stop:
            work_side_by_side(next_stage, self.at_once, self.stop, self._tell)
        progress.stop()
        if self.folder is not None:
            self._end(self._joined, self.folder)
        return self._joined

    def _learn(self, number: int, progress: SharedProgress) -> None:
        folder = None
        if self.folder is not None:
            folder = RunFolder(self.folder.stage(number), self._tell)
        with folder or nullcontext():
            stage = StageSession(
                self.config,
                self.dataset,
                self.stream,
                self.described,
                self.start,
                self.checkpoint_seconds,
                folder=folder,
                progress=progress.part(),
                stop=self.stop,
                runs=self.runs,
                only=number,
            )
            if folder is not None:
                weights = self.head["pretrained_sha256"]
                found = folder.find("auto", self.config, self.described["fingerprint"], weights)
                stage.resume(found)
            stage._before["seconds"] = self._before["seconds"]  # one clock for the whole run
            record = stage.run()
        with self._adding:
            self._add(number, record)

    def _add(self, number: int, record: Record) -> None:
        """Keep a finished stage, and join those that no earlier one is missing for."""
        self._waiting[number] = record
        peaks = [self._before["peak_device_bytes"], record["peak_device_bytes"]]
        known = [peak for peak in peaks if peak is not None]
        self._before["peak_device_bytes"] = max(known, default=None)
        while (following := len(self.tally.tasks)) in self._waiting:
            steps = steps_so_far(Underway(following), self.tally.tasks)
            self.tally.add_row(self._waiting.pop(following)["row"])
            self._joined = self.result()
            if self.folder is not None:
                self._join_log(self.folder, following, steps)
                self._keep(self._joined, self.folder)

    def _join_log(self, folder: RunFolder, number: int, steps: dict[str, int]) -> None:
        """Note the epochs of a stage as if the tasks before it had come before it."""
        log = folder.stage(number) / LOG
        for entry in history(read_log(log)) if log.exists() else ():
            step = steps.get(entry["training"], 0) + entry["step"]
            folder.log.note(**{**entry, "step": step})

    def _tell(self, sentence: str) -> None:
        if self.folder is not None:
            with self._adding:
                self.folder.tell(sentence)


class StageSession(Session):
    """Learns one task, and leaves its outcome in its folder."""

    def _learn_tasks(self) -> Record:
        (outcome,) = self.engine.run()
        row = task_row(outcome, self.tally.task_sizes)
        head = {"format": STAGE_FORMAT, "version": STAGE_VERSION}
        record = {**head, **self._which_run(), "row": row}
        if self.folder is not None:
            text = json.dumps(record, allow_nan=False)
            write_atomically(self.folder.path / STAGE, text + "\n", "writing a finished stage")
        return record

    def _end(self, result: Record, folder: RunFolder) -> None:
        folder.checkpoints.clear()
