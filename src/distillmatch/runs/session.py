"""A session: the part of a run that one process does."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
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
from distillmatch.runs.result import FORMAT, VERSION, Bound, Tally, recorded_config, write_result
from distillmatch.sources import Dataset
from distillmatch.streams import Stream

EXAMPLES = 24
"""Accepted images of a task that the log names."""
OTHERWISE = "choose another folder, or resume 'no' to start over"
Record = dict[str, Any]


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
        self.tally = Tally.restored(self.tally.task_sizes, values["results"])
        self._before = {key: values[key] for key in self._used() if key in values}

    def run(self) -> Record:
        """Learn the tasks that are left, and return the result."""
        if self.folder is None:
            return self._learn_tasks()
        if not self.tally.tasks and not self.engine.underway.begun:
            self.folder.log.note("begun", **self._described())
        self._notes = EpochNotes(self.folder.log, self.engine.underway)
        with (
            self._stopping(self.folder.tell) as self.stop,
            CheckpointWriter(self.folder) as self._writer,
        ):
            result = self._learn_tasks()
        self._end(result, self.folder)
        return result

    def _stopping(self, tell: Callable[[str], None] | None) -> AbstractContextManager[StopRequest]:
        return StopRequest(tell) if self.stop is None else nullcontext(self.stop)

    def _learn_tasks(self) -> Record:
        result: Record = {}
        for outcome in self.engine.run():
            self.tally.add(outcome)
            result = self.result()
            if self.folder is not None:
                self._keep(result, self.folder, self._examples(outcome))
                if not result["complete"]:
                    self._save()
                    self._stop_if_asked()
        return result

    def _keep(
        self, result: Record, folder: RunFolder, examples: list[dict[str, int]] | None = None
    ) -> None:
        """Write the result of the tasks so far, and note the last of them in the log."""
        write_result(result, folder.path)
        figures = {k: v for k, v in result["metrics"].items() if not isinstance(v, list)}
        task = {k: v for k, v in result["tasks"][-1].items() if k != "losses"}
        given = {"examples": examples} if examples else {}
        folder.log.note("task", **task, metrics=figures, **given)

    def _examples(self, outcome: TaskOutcome) -> list[dict[str, int]]:
        """Return a few accepted images: the place of each, its pseudo-label and its true class."""
        judged, number = outcome.judgement, outcome.task.number
        if judged is None:
            return []
        images = self.stream.tasks[number].unlabeled
        accepted = np.flatnonzero(judged.accepted).tolist()
        return [
            {
                "image": int(images[i]),
                "label": int(judged.pseudo_labels[i]),
                "truth": int(judged.truth[i]),
            }
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
        return {
            **self.head,
            "machine": {**self.head["machine"], "runs_at_once": used["runs_at_once"]},
            "complete": len(tasks) == len(self.tally.task_sizes),
            "metrics": self.tally.metrics(self.bound),
            **self.tally.matrices(),
            "tasks": tasks,
            "seconds": {**seconds, "total": used["seconds"]},
            "memory": {
                "stored_images": max(task["stored_images"] for task in tasks),
                "stored_bytes": max(task["stored_bytes"] for task in tasks),
                "peak_device_bytes": used["peak_device_bytes"],
            },
        }

    def _used(self) -> Record:
        """Return the time and memory that the run has used, and the runs beside it, so far."""
        peaks = [self._before["peak_device_bytes"], self.engine.placement.peak_memory()]
        beside = 1 if self.runs is None else self.runs.most
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

    def _described(self) -> Record:
        shown = {key: self.head[key] for key in ("method", "seed", "machine", "commit")}
        return {**shown, "tasks": len(self.tally.task_sizes)}

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
