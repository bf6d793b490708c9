"""Independent tasks, such as the stages of the bound, learned side by side and joined."""

import json
import threading
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from distillmatch.config import RunConfig
from distillmatch.engine.outcome import Underway
from distillmatch.errors import ResultError
from distillmatch.files import is_other_json, read_record, write_atomically
from distillmatch.runs.folder import STAGES, Found, RunFolder
from distillmatch.runs.lock import NAME as LOCK
from distillmatch.runs.log import LOG, history, read_log, steps_so_far
from distillmatch.runs.progress import SharedProgress
from distillmatch.runs.result import task_row
from distillmatch.runs.schema import StageSchema, check_form
from distillmatch.runs.session import Session
from distillmatch.runs.side_by_side import Work, work_side_by_side
from distillmatch.sources import Dataset
from distillmatch.streams import Stream

STAGE = "stage.json"
FORMAT = "distillmatch stage"
VERSION = 1
Record = dict[str, Any]


class StagedSession(Session):
    """Learns each task in a thread and a folder of its own, the longest first.

    The stages that are finished from the first on make the result, as tasks in a row do; `stages/`
    in the run's folder is removed at the end.
    """

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        stream: Stream,
        described: dict[str, Any],
        *,
        at_once: int,
        **given: Any,
    ) -> None:
        super().__init__(config, dataset, stream, described, **given)
        self.at_once = at_once
        self._adding = threading.RLock()  # taken again by a signal handler that tells something
        self._waiting: dict[int, Record] = {}
        self._joined: dict[str, Any] = {}
        self._continued = False

    def resume(self, found: Found) -> None:
        """Count in what was done; a task that was begun among tasks in a row starts over."""
        self._continued = found != Found()
        if found.checkpoint is not None:
            self._take_up(found.checkpoint.values)
        if found.stages is not None:
            self._earlier_seconds = max(self._earlier_seconds, found.stages["seconds"])
            earlier = found.stages.get("runs_at_once", 1)
            self._earlier_at_once = max(self._earlier_at_once, earlier)

    def run(self) -> dict[str, Any]:
        """Learn the tasks that are left, and return the result."""
        if self.folder is not None:
            self._begin(self.folder)
        finished = len(self.tally.tasks)
        left = [n for n in self.engine.tasks if n >= finished and n not in self._waiting]
        progress = SharedProgress(self.engine.trainer.progress, len(self.engine.tasks))
        done = [number for number in self.engine.tasks if number not in left]
        progress.start(self.engine.work_of(self.engine.tasks), self.engine.work_of(done))

        def next_stage() -> Work | None:
            return partial(self._learn, left.pop(), progress) if left else None

        with self._stopping(self._tell if self.at_once == 1 else None) as self._stop:
            try:
                work_side_by_side(next_stage, self.at_once, self._stop, self._tell)
            finally:
                self._keep_head()
        progress.stop()
        if self.folder is not None:
            self._end(self._joined, self.folder)
        return self._joined

    def _begin(self, folder: RunFolder) -> None:
        """Take in the finished stages, and note in the log what of it counts."""
        self._keep_head()
        fields: dict[str, Any] = self._described()
        if self._continued:
            finished = self.tally.tasks
            steps = steps_so_far(Underway(len(finished)), finished)
            fields = {"task": len(finished) + 1, "steps": steps}
        folder.log.note("continued" if self._continued else "begun", **fields)
        for number in self.engine.tasks:
            place = self._place_of(folder, number)
            # The folder of the run is ours, so what lies here was left behind.
            (place / LOCK).unlink(missing_ok=True)
            if (place / STAGE).exists() and number >= len(self.tally.tasks):
                record = self._read_stage(place / STAGE, number)
                if record is not None:
                    self._add(number, record)

    def _read_stage(self, path: Path, number: int) -> Record | None:
        """Return a finished stage; one whose file is damaged is learned again."""
        try:
            record = read_record(path, "finished stage", FORMAT, VERSION, ResultError)
            check_form(StageSchema, record, path)
            if {len(record["row"][name]) for name in "RAP"} != {number + 1}:
                raise ResultError(f"{path}: expected accuracies of {number + 1} tasks")
        except ResultError as error:
            if is_other_json(path, FORMAT, (VERSION,)):
                raise
            self._tell(f"{error}; the stage is learned again")
            return None
        return record

    def _learn(self, number: int, progress: SharedProgress) -> None:
        engine, folder = self.engine, None
        if self.folder is not None:
            folder = RunFolder(self._place_of(self.folder, number), self._tell)
        with folder or nullcontext():
            stage = StageSession(
                engine.config,
                engine.dataset,
                engine.stream,
                self.head["stream"],
                start=self._start,
                bound=None,
                progress=progress.part(),
                folder=folder,
                checkpoint_seconds=self._checkpoint_seconds,
                stop=self._stop,
                only=number,
            )
            if folder is not None:
                fingerprint = self.head["stream"]["fingerprint"]
                weights = self.head["pretrained_sha256"]
                stage.resume(folder.find("auto", engine.config, fingerprint, weights))
            record = stage.run()
        with self._adding:
            self._add(number, record)

    def _add(self, number: int, record: Record) -> None:
        """Keep a finished stage, and join those that no earlier one is missing for."""
        self._waiting[number] = record
        peaks = [self._earlier_peak, record["peak_device_bytes"]]
        self._earlier_peak = max((peak for peak in peaks if peak is not None), default=None)
        while (following := len(self.tally.tasks)) in self._waiting:
            finished = list(self.tally.tasks)
            self.tally.add_row(self._waiting.pop(following)["row"])
            self._joined = self.result()
            if self.folder is not None:
                self._join_logs(self.folder, following, finished)
                self._keep(self._joined, self.folder)
        self._keep_head()

    def _join_logs(self, folder: RunFolder, number: int, finished: list[Record]) -> None:
        """Note the epochs of a stage as if the tasks before it had come before it."""
        steps = steps_so_far(Underway(number), finished)
        log = self._place_of(folder, number) / LOG
        for entry in history(read_log(log)) if log.exists() else ():
            step = steps.get(entry["training"], 0) + entry["step"]
            folder.log.note_soon(**{**entry, "step": step})

    def _keep_head(self) -> None:
        if self.folder is not None:
            kept = {key: self.head[key] for key in ("config", "stream", "pretrained_sha256")}
            so_far = {"seconds": self._seconds(), "runs_at_once": self._at_once()}
            self.folder.write_stages_head({**kept, **so_far})

    def _tell(self, sentence: str) -> None:
        if self.folder is not None:
            with self._adding:
                self.folder.tell(sentence)

    @staticmethod
    def _place_of(folder: RunFolder, number: int) -> Path:
        return folder.path / STAGES / f"{number + 1:02d}"


class StageSession(Session):
    """Learns one task, and leaves its outcome in its folder."""

    def _run(self, folder: RunFolder | None) -> Record:
        (outcome,) = self.engine.run()
        record = {
            "format": FORMAT,
            "version": VERSION,
            "row": task_row(outcome, self.tally.task_sizes),
            "peak_device_bytes": self._peak(),
        }
        if folder is not None:
            folder.log.flush()
            text = json.dumps(record, allow_nan=False)
            write_atomically(folder.path / STAGE, text + "\n", "writing a finished stage")
        return record

    def _end(self, result: Record, folder: RunFolder) -> None:
        folder.checkpoints.clear()
