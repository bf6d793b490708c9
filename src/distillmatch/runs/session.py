"""A session: the part of a run that one process does."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np

from distillmatch.config import RunConfig
from distillmatch.engine import Engine, Progress, Snapshot, TaskOutcome
from distillmatch.engine.outcome import Underway
from distillmatch.errors import RunFolderError
from distillmatch.files import write_atomically
from distillmatch.randomness import shuffled
from distillmatch.runs.checkpoints import Checkpoint, CheckpointWriter
from distillmatch.runs.folder import (
    OTHERWISE,
    STAGE,
    STAGE_FORMAT,
    STAGE_VERSION,
    Found,
    Record,
    RunFolder,
)
from distillmatch.runs.interruption import StopRequest
from distillmatch.runs.lock import NAME as LOCK
from distillmatch.runs.log import LOG, EpochNotes, history, read_log, steps_so_far
from distillmatch.runs.machine import AtOnce, commit, machine, versions
from distillmatch.runs.result import (
    FORMAT,
    VERSION,
    Bound,
    Tally,
    recorded_config,
    task_row,
    write_result,
)
from distillmatch.runs.side_by_side import SharedProgress, Work, work_side_by_side
from distillmatch.sources import Dataset
from distillmatch.streams import Stream

EXAMPLES = 24
"""Accepted images of a task that the log names."""


@dataclass(eq=False)
class Session:
    """Takes an engine through its tasks, and keeps what is finished in a folder, if there is one.

    `start` is when the session began, by `time.perf_counter`; within a task a checkpoint is written
    every `checkpoint_seconds`, unless that is 0. Without a shared `stop` the session handles
    signals itself. `runs` counts the runs of the process. With `only` that task alone is learned.
    """

    config: RunConfig
    dataset: Dataset
    stream: Stream
    described: Record
    start: float
    checkpoint_seconds: float
    folder: RunFolder | None = None
    bound: Bound | None = None
    progress: Progress | None = None
    stop: StopRequest | None = None
    runs: AtOnce | None = None
    only: int | None = None

    def __post_init__(self) -> None:
        self.engine = Engine(
            self.config, self.dataset, self.stream, self.progress, self._between_epochs, self.only
        )
        self.tally = Tally(self.stream.task_sizes)
        self.head = self._head()
        self._before: Record = {"seconds": 0.0, "peak_device_bytes": None}
        self._saved_at = time.monotonic()
        self._writer: CheckpointWriter | None = None
        self._notes: EpochNotes | None = None

    def _head(self) -> Record:
        """Return what a result says of a run before anything is learned."""
        config, engine, stream = self.config, self.engine, self.stream
        weights = engine.factory.weights
        return {
            "format": FORMAT,
            "version": VERSION,
            "config": recorded_config(config),
            "options": engine.method.options.model_dump(mode="json"),
            "stream": self.described,
            "method": config.method,
            "seed": config.seed,
            "uses_truth": engine.method.needs_truth,
            "pretrained_sha256": weights.sha256 if weights else None,
            "classes": [stream.class_names[c] for c in stream.class_order],
            "task_sizes": list(stream.task_sizes),
            "versions": versions(),
            "machine": machine(engine.placement),
            "commit": commit(),
        }

    def run_from(self, found: Found) -> Record:
        """Continue from what the folder holds, and return the result."""
        self.resume(found)
        begins_at = self._place()
        try:
            return self.run()
        except KeyError as error:
            if found.checkpoint is None or self._place() != begins_at:
                raise
            raise RunFolderError(
                f"{self._place()}: the checkpoint has no {error}; {OTHERWISE}"
            ) from error

    def resume(self, found: Found) -> None:
        """Continue from the checkpoint in the folder, if there is one."""
        if found.checkpoint is None or self.folder is None:
            return
        values = found.checkpoint.values
        try:
            self.engine.resume(Snapshot(values["engine"], found.checkpoint.tensors))
            self._take_up(values)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise RunFolderError(
                f"{self._place()}: the checkpoint is not one of this run ({error}); {OTHERWISE}"
            ) from None
        then, now = values["made_with"], self._made_with()
        changed = [f"{k} was {then.get(k)} and is {now[k]}" for k in now if then.get(k) != now[k]]
        self.folder.tell(
            f"continuing in {self._place()}" + (f" ({', '.join(changed)})" if changed else ""),
            "continued",
            task=self.engine.underway.task + 1,
            steps=steps_so_far(self.engine.underway, self.tally.tasks),
        )

    def _take_up(self, values: Record) -> None:
        """Count in what was done before a checkpoint."""
        self.tally = Tally(self.tally.task_sizes, values["results"])
        self._before = {key: values[key] for key in self._used() if key in values}

    def run(self) -> Record:
        """Learn the tasks that are left, and return the result."""
        if self.folder is None:
            return self._learn_tasks()
        if not self.tally.tasks and not self.engine.underway.begun:
            self._note_begun(self.folder)
        steps = steps_so_far(self.engine.underway, self.tally.tasks)
        self._notes = EpochNotes(self.folder.log, steps)
        with (
            self._stopping(self.folder.tell) as self.stop,
            CheckpointWriter(self.folder.checkpoints, self.folder.log) as self._writer,
        ):
            result = self._learn_tasks()
        self._end(result, self.folder)
        return result

    def _note_begun(self, folder: RunFolder) -> None:
        shown = {key: self.head[key] for key in ("method", "seed", "machine", "commit")}
        folder.log.note("begun", **shown, tasks=len(self.tally.task_sizes))

    def _stopping(self, tell: Callable[[str], None] | None) -> AbstractContextManager[StopRequest]:
        return StopRequest(tell) if self.stop is None else nullcontext(self.stop)

    def _learn_tasks(self) -> Record:
        result: Record = {}
        for outcome in self.engine.run():
            self.tally.add(task_row(outcome, self.tally.task_sizes))
            result = self.result()
            if self.folder is not None:
                self._keep(result, self.folder, self._examples(outcome))
                if not result["complete"]:
                    self._save()
                    self._stop_if_asked()
        return result

    def _keep(self, result: Record, folder: RunFolder, examples: list[Record]) -> None:
        """Write the result of the tasks so far, and note the last of them in the log."""
        write_result(result, folder.path)
        figures = {k: v for k, v in result["metrics"].items() if not isinstance(v, list)}
        task = {k: v for k, v in result["tasks"][-1].items() if k != "losses"}
        given = {"examples": examples} if examples else {}
        folder.log.note("task", **task, metrics=figures, **given)

    def _examples(self, outcome: TaskOutcome) -> list[Record]:
        """Return a few accepted images: the place of each, its pseudo-label and its true class."""
        judged, number = outcome.judgement, outcome.task.number
        if judged is None:
            return []
        images = self.stream.tasks[number].unlabeled
        accepted = np.flatnonzero(judged.accepted).tolist()
        parts = {"image": images, "label": judged.pseudo_labels, "truth": judged.truth}
        return [
            {name: int(values[i]) for name, values in parts.items()}
            for i in shuffled(accepted, self.config.seed, "examples", number)[:EXAMPLES]
        ]

    def _end(self, result: Record, folder: RunFolder) -> None:
        folder.clear()
        folder.log.note("finished", seconds=result["seconds"], metrics=result["metrics"])

    def result(self) -> Record:
        """Return the result of the finished tasks."""
        tasks, used = self.tally.tasks, self._used()
        seconds: dict[str, float] = {}
        for task in tasks:
            for phase, spent in task["seconds"].items():
                seconds[phase] = seconds.get(phase, 0.0) + spent
        most = {k: max(task[k] for task in tasks) for k in ("stored_images", "stored_bytes")}
        return {
            **self.head,
            "machine": {**self.head["machine"], "runs_at_once": used["runs_at_once"]},
            "complete": len(tasks) == len(self.tally.task_sizes),
            "metrics": self.tally.metrics(self.bound),
            **self.tally.matrices(),
            "tasks": tasks,
            "seconds": {**seconds, "total": used["seconds"]},
            "memory": {**most, "peak_device_bytes": used["peak_device_bytes"]},
        }

    def _used(self) -> Record:
        """Return the time and memory that the run has used, and the runs beside it, so far."""
        beside = 1 if self.runs is None else self.runs.most
        peaks = self._before["peak_device_bytes"], self.engine.placement.peak_memory()
        return {
            "seconds": self._before["seconds"] + time.perf_counter() - self.start,
            "peak_device_bytes": max((peak for peak in peaks if peak is not None), default=None),
            "runs_at_once": max(self._before.get("runs_at_once", 1), beside),
        }

    def _which_run(self) -> Record:
        """Return what a checkpoint or a finished stage says of its run."""
        kept = {key: self.head[key] for key in ("config", "stream", "pretrained_sha256")}
        return {**kept, **self._used()}

    def _made_with(self) -> Record:
        place = {key: self.head["machine"][key] for key in ("device", "precision")}
        return {**self.head["versions"], **place, "commit": self.head["commit"]["id"]}

    def _between_epochs(self) -> None:
        """Write a checkpoint if one is due or the run is to stop."""
        asked = self.stop is not None and self.stop.asked
        if self._writer is not None:
            self._note_epochs()
            self._writer.look()
            wait = self.checkpoint_seconds
            if asked or (wait and time.monotonic() - self._saved_at >= wait):
                self._save()
        if asked:  # a stop that was asked for since then comes after the next epoch
            self._stop_if_asked()

    def _save(self) -> None:
        """Begin to write the state of the run, in copies: it is written while the run goes on."""
        assert self._writer is not None
        self._writer.settle()  # before the copies are made, so that one set of them is held
        snapshot = self.engine.snapshot()
        values = {
            **self._which_run(),
            "made_with": self._made_with(),
            "results": {**self.tally.matrices(), "tasks": list(self.tally.tasks)},
            "engine": snapshot.values,
        }
        self._note_epochs()  # a checkpoint has the losses of the last epoch too
        self._writer.begin(Checkpoint(values, snapshot.tensors), self._place())
        self._saved_at = time.monotonic()

    def _note_epochs(self) -> None:
        if self._notes is not None:
            self._notes.update(self.engine.underway, self.tally.tasks)

    def _stop_if_asked(self) -> None:
        if self.stop is None or not self.stop.asked:
            return
        where = f"in {self._place()}"
        if self._writer is not None and self.folder is not None:
            self._writer.settle()
            where += (
                f"; what is done is in {self.folder.path}, and the same command continues from "
                "there"
            )
        raise self.stop.interrupted(where)

    def _place(self) -> str:
        underway = self.engine.underway
        after = f" after epoch {underway.epochs} of training {underway.trainings + 1}"
        task = f"task {underway.task + 1} of {len(self.tally.task_sizes)}"
        return task + after if underway.epochs else task


@dataclass(eq=False)
class StagedSession(Session):
    """Learns each of a run's independent tasks in a thread and a folder of its own, longest first.

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
        done = len(self.tally.tasks)
        if found == Found():
            self._note_begun(self.folder)
        else:
            steps = steps_so_far(Underway(done), self.tally.tasks)
            self.folder.log.note("continued", task=done + 1, steps=steps)
        for number in self.engine.tasks:
            # The folder of the run is ours, so what lies here was left behind.
            (self.folder.stage(number) / LOCK).unlink(missing_ok=True)
            record = found.stages.get(number, {})
            if "row" in record and number >= done:
                self._add(number, record)

    def run(self) -> Record:
        """Learn the tasks that are left, and return the result."""
        first, work_of = len(self.tally.tasks), self.engine.work_of
        left = [n for n in self.engine.tasks if n >= first and n not in self._waiting]
        progress = SharedProgress(self.engine.trainer.progress, len(self.engine.tasks))
        done = [number for number in self.engine.tasks if number not in left]
        progress.start(work_of(self.engine.tasks), work_of(done))

        def next_stage() -> Work | None:
            return partial(self._learn, left.pop(), progress) if left else None

        with self._stopping(self._tell if self.at_once == 1 else None) as self.stop:
            work_side_by_side(next_stage, self.at_once, self.stop, self._tell)
        progress.stop()
        if self.folder is not None:
            self._end(self._joined, self.folder)
        return self._joined

    def _learn(self, number: int, progress: SharedProgress) -> None:
        parts = self.folder and RunFolder(self.folder.stage(number), self._tell)
        with parts or nullcontext() as folder:
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
        peaks = self._before["peak_device_bytes"], record["peak_device_bytes"]
        known = (peak for peak in peaks if peak is not None)
        self._before["peak_device_bytes"] = max(known, default=None)
        while (following := len(self.tally.tasks)) in self._waiting:
            steps = steps_so_far(Underway(following), self.tally.tasks)
            self.tally.add(self._waiting.pop(following)["row"])
            self._joined = self.result()
            if self.folder is not None:
                log = self.folder.stage(following) / LOG
                for entry in history(read_log(log)) if log.exists() else ():
                    # As if the tasks before it had come before it.
                    step = steps.get(entry["training"], 0) + entry["step"]
                    self.folder.log.note(**{**entry, "step": step})
                self._keep(self._joined, self.folder, [])

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
