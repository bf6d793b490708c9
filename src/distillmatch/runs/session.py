"""A session: the part of a run that one process does."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from distillmatch.config import RunConfig
from distillmatch.engine import Engine, Progress, Snapshot, TaskOutcome
from distillmatch.errors import RunFolderError
from distillmatch.randomness import shuffled
from distillmatch.runs.checkpoints import Checkpoint, CheckpointWriter
from distillmatch.runs.folder import Found, RunFolder
from distillmatch.runs.interruption import StopRequest
from distillmatch.runs.log import EpochNotes, steps_so_far
from distillmatch.runs.machine import AtOnce, commit, machine, versions
from distillmatch.runs.result import (
    FORMAT,
    VERSION,
    Bound,
    Tally,
    recorded_config,
    write_result,
)
from distillmatch.sources import Dataset
from distillmatch.streams import Stream

EXAMPLES = 24
"""Accepted images of a task that the log names."""


class Session:
    """Takes an engine through its tasks, and keeps what is finished in a folder, if there is one.

    `start` is when the session began, by `time.perf_counter`; within a task a checkpoint is written
    every `checkpoint_seconds`, unless that is 0. Without a shared `stop` the session handles
    signals itself. `runs` counts the runs of the process. With `only` that task alone is learned.
    """

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        stream: Stream,
        described: dict[str, Any],
        *,
        start: float,
        bound: Bound | None,
        progress: Progress | None,
        folder: RunFolder | None,
        checkpoint_seconds: float,
        stop: StopRequest | None = None,
        runs: AtOnce | None = None,
        only: int | None = None,
    ) -> None:
        self.folder = folder
        self.bound = bound
        self.engine = Engine(config, dataset, stream, progress, self._between_epochs, only)
        self.tally = Tally(stream.task_sizes)
        weights = self.engine.factory.weights
        self.head: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "config": recorded_config(config),
            "options": self.engine.method.options.model_dump(mode="json"),
            "stream": described,
            "method": config.method,
            "seed": config.seed,
            "uses_truth": self.engine.method.needs_truth,
            "pretrained_sha256": weights.sha256 if weights else None,
            "classes": [stream.class_names[c] for c in stream.class_order],
            "task_sizes": list(stream.task_sizes),
            "versions": versions(),
            "machine": machine(self.engine.placement),
            "commit": commit(),
        }
        self._start = start
        self._earlier_seconds = 0.0
        self._earlier_peak: int | None = None
        self._earlier_at_once = 1
        self._checkpoint_seconds = checkpoint_seconds
        self._saved_at = time.monotonic()
        self._stop = stop
        self._runs = runs
        self._writer: CheckpointWriter | None = None
        self._notes: EpochNotes | None = None

    def resume(self, found: Found) -> None:
        """Continue from the checkpoint in the folder, if there is one."""
        if found.checkpoint is None:
            return
        checkpoint, values = found.checkpoint, found.checkpoint.values
        try:
            self.engine.resume(Snapshot(values["engine"], checkpoint.tensors))
            self._take_up(values)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise RunFolderError(
                f"{self._place()}: the checkpoint is not one of this run ({error}); choose another "
                "folder, or resume 'no' to start over"
            ) from None
        if self.folder is not None:
            then, now = values["made_with"], self._made_with()
            changed = [
                f"{k} was {then.get(k)} and is {now[k]}" for k in now if then.get(k) != now[k]
            ]
            how = f" ({', '.join(changed)})" if changed else ""
            self.folder.tell(
                f"continuing in {self._place()}{how}",
                "continued",
                task=self.engine.underway.task + 1,
                steps=steps_so_far(self.engine.underway, self.tally.tasks),
            )

    def _take_up(self, values: dict[str, Any]) -> None:
        """Count in what was done before a checkpoint."""
        self.tally = Tally.restored(self.tally.task_sizes, values["results"])
        self._earlier_seconds = values["seconds"]
        self._earlier_peak = values["peak_device_bytes"]
        self._earlier_at_once = values.get("runs_at_once", 1)

    def run_from(self, found: Found) -> dict[str, Any]:
        """Continue from what the folder holds, and return the result."""
        self.resume(found)
        begins_at = self._place()
        try:
            return self.run()
        except KeyError as error:
            if found.checkpoint is None or self._place() != begins_at:
                raise
            raise RunFolderError(
                f"{self._place()}: the checkpoint has no {error}; choose another folder, or resume "
                "'no' to start over"
            ) from error

    def run(self) -> dict[str, Any]:
        """Learn the tasks that are left, and return the result."""
        if self.folder is None:
            return self._run(None)
        if not self.tally.tasks and not self.engine.underway.begun:
            self.folder.log.note("begun", **self._described())
        self._notes = EpochNotes(self.folder.log, self.engine.underway)
        with (
            self._stopping(self.folder.tell) as self._stop,
            CheckpointWriter(self.folder) as self._writer,
        ):
            result = self._run(self.folder)
        self._end(result, self.folder)
        return result

    def _stopping(self, tell: Callable[[str], None] | None) -> AbstractContextManager[StopRequest]:
        return StopRequest(tell) if self._stop is None else nullcontext(self._stop)

    def _run(self, folder: RunFolder | None) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for outcome in self.engine.run():
            self.tally.add(outcome)
            result = self.result()
            if folder is not None:
                self._keep(result, folder, self._examples(outcome))
                if not result["complete"]:
                    self._save()
                    self._stop_if_asked()
        return result

    def _keep(
        self, result: dict[str, Any], folder: RunFolder, examples: Sequence[dict[str, int]] = ()
    ) -> None:
        write_result(result, folder.path)
        given = {"examples": examples} if examples else {}
        folder.log.note("task", **self._task_record(result), **given)

    def _examples(self, outcome: TaskOutcome) -> list[dict[str, int]]:
        """Return a few accepted images: the place of each, its pseudo-label and its true class."""
        judged, number = outcome.judgement, outcome.task.number
        if judged is None:
            return []
        images = self.engine.stream.tasks[number].unlabeled
        accepted = np.flatnonzero(judged.accepted).tolist()
        return [
            {
                "image": int(images[i]),
                "label": int(judged.pseudo_labels[i]),
                "truth": int(judged.truth[i]),
            }
            for i in shuffled(accepted, self.engine.config.seed, "examples", number)[:EXAMPLES]
        ]

    def _end(self, result: dict[str, Any], folder: RunFolder) -> None:
        folder.clear()
        folder.log.note("finished", seconds=result["seconds"], metrics=result["metrics"])

    def result(self) -> dict[str, Any]:
        """Return the result of the finished tasks."""
        tasks = self.tally.tasks
        seconds: dict[str, float] = {}
        for task in tasks:
            for phase, spent in task["seconds"].items():
                seconds[phase] = seconds.get(phase, 0.0) + spent
        return {
            **self.head,
            "machine": {**self.head["machine"], "runs_at_once": self._at_once()},
            "complete": len(tasks) == len(self.tally.task_sizes),
            "metrics": self.tally.metrics(self.bound),
            **self.tally.matrices(),
            "tasks": tasks,
            "seconds": {**seconds, "total": self._seconds()},
            "memory": {
                "stored_images": max(task["stored_images"] for task in tasks),
                "stored_bytes": max(task["stored_bytes"] for task in tasks),
                "peak_device_bytes": self._peak(),
            },
        }

    def _checkpoint(self) -> Checkpoint:
        """Return the state of the run, in copies: it is written while the run goes on."""
        snapshot = self.engine.snapshot()
        values = {
            "config": self.head["config"],
            "stream": self.head["stream"],
            "pretrained_sha256": self.head["pretrained_sha256"],
            "made_with": self._made_with(),
            "seconds": self._seconds(),
            "peak_device_bytes": self._peak(),
            "runs_at_once": self._at_once(),
            "results": {**self.tally.matrices(), "tasks": list(self.tally.tasks)},
            "engine": snapshot.values,
        }
        return Checkpoint(values, snapshot.tensors)

    def _between_epochs(self) -> None:
        """Write a checkpoint if one is due or the run is to stop."""
        wait = self._checkpoint_seconds
        asked = self._stop is not None and self._stop.asked
        if self._writer is not None:
            self._note_epochs()
            self._writer.look()
            if asked or (wait and time.monotonic() - self._saved_at >= wait):
                self._save()
        if asked:
            self._stop_if_asked()

    def _save(self) -> None:
        """Begin to write the state of the run."""
        assert self._writer is not None
        self._writer.settle()  # before the copies are made, so that one set of them is held
        checkpoint = self._checkpoint()
        self._note_epochs()  # a checkpoint has the losses of the last epoch too
        self._writer.begin(checkpoint, self._place())
        self._saved_at = time.monotonic()

    def _note_epochs(self) -> None:
        if self._notes is not None:
            self._notes.update(self.engine.underway, self.tally.tasks)

    def _stop_if_asked(self) -> None:
        if self._stop is not None and self._stop.asked:
            if self._writer is not None:
                self._writer.settle()
            where = f"in {self._place()}"
            if self.folder is not None:
                where += (
                    f"; what is done is in {self.folder.path}, and the same command continues "
                    "from there"
                )
            raise self._stop.interrupted(where)

    def _place(self) -> str:
        underway = self.engine.underway
        after = f" after epoch {underway.epochs} of training {underway.trainings + 1}"
        task = f"task {underway.task + 1} of {len(self.tally.task_sizes)}"
        return task + after if underway.epochs else task

    def _described(self) -> dict[str, Any]:
        shown = {key: self.head[key] for key in ("method", "seed", "machine", "commit")}
        return {**shown, "tasks": len(self.tally.task_sizes)}

    def _task_record(self, result: dict[str, Any]) -> dict[str, Any]:
        record = {key: value for key, value in result["tasks"][-1].items() if key != "losses"}
        figures = result["metrics"].items()
        return {**record, "metrics": {k: v for k, v in figures if not isinstance(v, list)}}

    def _made_with(self) -> dict[str, Any]:
        place = {key: self.head["machine"][key] for key in ("device", "precision")}
        return {**self.head["versions"], **place, "commit": self.head["commit"]["id"]}

    def _seconds(self) -> float:
        return self._earlier_seconds + time.perf_counter() - self._start

    def _at_once(self) -> int:
        return max(self._earlier_at_once, 1 if self._runs is None else self._runs.most)

    def _peak(self) -> int | None:
        now = self.engine.placement.peak_memory()
        known = [peak for peak in (self._earlier_peak, now) if peak is not None]
        return max(known, default=None)
