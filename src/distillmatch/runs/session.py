"""A session: the part of a run that one process does."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from distillmatch.config import RunConfig
from distillmatch.engine import Engine, Progress, Snapshot, TaskOutcome
from distillmatch.errors import RunFolderError
from distillmatch.methods import Training
from distillmatch.randomness import shuffled
from distillmatch.runs.checkpoints import Checkpoint
from distillmatch.runs.folder import OTHERWISE, Record, RunFolder
from distillmatch.runs.interruption import StopRequest
from distillmatch.runs.log import epochs_of, steps_of
from distillmatch.runs.machine import commit, machine, versions
from distillmatch.runs.result import (
    FORMAT,
    VERSION,
    Bound,
    Tally,
    recorded_config,
    task_row,
    write_result,
)
from distillmatch.streams import Stream

EXAMPLES = 24
"""Accepted images of a task that the log names."""


@dataclass(eq=False)
class Session:
    """Takes an engine through its tasks, and keeps what is finished in a folder, if there is one.

    `start` is when the run began in this process, by `time.perf_counter`; within a task a
    checkpoint is written every `checkpoint_seconds`, unless that is 0. With `only` that task alone
    is learned, and the last checkpoint has its row of the result.
    """

    config: RunConfig
    stream: Stream
    described: Record
    start: float
    checkpoint_seconds: float
    stop: StopRequest
    folder: RunFolder | None = None
    bound: Bound | None = None
    progress: Progress | None = None
    only: int | None = None

    def __post_init__(self) -> None:
        calls = self.progress, self._keep, self.only, self._note_epoch
        self.engine = Engine(self.config, self.stream.dataset, self.stream, *calls)
        self.tally = Tally(self.stream.task_sizes)
        self.head = self._head()
        self.before: Record = {"seconds": 0.0, "peak_device_bytes": None}
        self.row: Record | None = None
        self.result: Record = {}
        self._saved_at = time.monotonic()
        self._noted_at = time.perf_counter()

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

    def learn(self, checkpoint: Checkpoint | None = None) -> None:
        """Learn what is left of the tasks, from where a checkpoint stands."""
        if checkpoint is not None:
            self._resume(checkpoint)
        else:
            self.note_begun()
        begins_at = self._place
        try:
            for outcome in self.engine.run():
                self._finish(outcome)
        except KeyError as error:
            if checkpoint is None or self._place != begins_at:
                raise
            raise RunFolderError(
                f"{begins_at}: the checkpoint has no {error}; {OTHERWISE}"
            ) from error

    def note_begun(self) -> None:
        """Note in the log that the run begins."""
        shown = {key: self.head[key] for key in ("method", "seed", "machine", "commit")}
        self._note("begun", **shown, tasks=len(self.stream))

    def take_up(self, values: Record) -> None:
        """Count in what was done before a checkpoint."""
        self.tally = Tally(self.stream.task_sizes, values["results"])
        self.count_used(values)

    def count_used(self, values: Record) -> None:
        """Count in the time and memory that an earlier process used, by its checkpoint."""
        self.before = {key: _most(self.before[key], values.get(key)) for key in self.before}

    def add(self, row: Record, examples: list[Record]) -> None:
        """Count a task in, write the result of the tasks so far, and note the task in the log."""
        self.tally.add(row)
        self.result = self._result()
        if self.folder is not None:
            write_result(self.result, self.folder.path)
        figures = {k: v for k, v in self.result["metrics"].items() if not isinstance(v, list)}
        task = {k: v for k, v in self.result["tasks"][-1].items() if k != "losses"}
        given = {"examples": examples} if examples else {}
        self._note("task", **task, metrics=figures, **given)

    def end(self) -> Record:
        """Remove what the run was resumed from, and return the result."""
        if self.folder is not None:
            self.folder.clear()
        self._note("finished", seconds=self.result["seconds"], metrics=self.result["metrics"])
        return self.result

    def _note(self, event: str, **fields: Any) -> None:
        if self.folder is not None:
            self.folder.log.note(event, **fields)

    def _resume(self, checkpoint: Checkpoint) -> None:
        values = checkpoint.values
        try:
            self.engine.resume(Snapshot(values["engine"], checkpoint.tensors))
            self.take_up(values)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise RunFolderError(
                f"{self._place}: the checkpoint is not one of this run ({error}); {OTHERWISE}"
            ) from None
        then, now = values["made_with"], self._made_with()
        changed = [f"{k} was {then.get(k)} and is {now[k]}" for k in now if then.get(k) != now[k]]
        underway = self.engine.underway
        assert self.folder is not None
        self.folder.tell(
            f"continuing in {self._place}" + (f" ({', '.join(changed)})" if changed else ""),
            "continued",
            task=underway.task + 1,
            steps=steps_of([*self.tally.tasks, {"losses": underway.losses}]),
        )

    def _finish(self, outcome: TaskOutcome) -> None:
        """Keep what came of a task: in the result so far, or of a task alone in a checkpoint."""
        row = task_row(outcome, self.stream.task_sizes)
        if self.only is not None:
            self.row = row
            self._save()
            return
        self.add(row, self._examples(outcome))
        if not self.result["complete"]:
            self._keep(now=True)

    def _examples(self, outcome: TaskOutcome) -> list[Record]:
        """Return a few accepted images: the place of each, its pseudo-label and its true class."""
        judged, number = outcome.judgement, outcome.task.number
        if judged is None:
            return []
        images = self.stream.tasks[number].unlabeled
        accepted = np.flatnonzero(judged.accepted).tolist()
        parts = {"image": images, "label": judged.pseudo_labels, "truth": outcome.truth}
        return [
            {name: int(values[i]) for name, values in parts.items()}
            for i in shuffled(accepted, self.config.seed, "examples", number)[:EXAMPLES]
        ]

    def _result(self) -> Record:
        """Return the result of the finished tasks."""
        tasks, used = self.tally.tasks, self._used()
        seconds: dict[str, float] = {}
        for task in tasks:
            for phase, spent in task["seconds"].items():
                seconds[phase] = seconds.get(phase, 0.0) + spent
        most = {k: max(task[k] for task in tasks) for k in ("stored_images", "stored_bytes")}
        return {
            **self.head,
            "complete": len(tasks) == len(self.stream),
            "metrics": self.tally.metrics(self.bound),
            **self.tally.matrices(),
            "tasks": tasks,
            "seconds": {**seconds, "total": used["seconds"]},
            "memory": {**most, "peak_device_bytes": used["peak_device_bytes"]},
        }

    def _used(self) -> Record:
        """Return the time and memory that the run has used so far."""
        before, peak = self.before, self.engine.placement.peak_memory()
        return {
            "seconds": before["seconds"] + time.perf_counter() - self.start,
            "peak_device_bytes": _most(before["peak_device_bytes"], peak),
        }

    def _made_with(self) -> Record:
        place = {key: self.head["machine"][key] for key in ("device", "precision")}
        return {**self.head["versions"], **place, "commit": self.head["commit"]["id"]}

    def _note_epoch(self, training: Training, epoch: int) -> None:
        """Note an epoch whose losses are known, with its number among those of all tasks."""
        underway, before = self.engine.underway, self._noted_at
        self._noted_at = time.perf_counter()
        losses = {name: means[epoch] for name, means in underway.losses[training.name].items()}
        self._note(
            "epoch",
            task=underway.task + 1,
            training=training.name,
            epoch=epoch + 1,
            step=epochs_of(training.name, self.tally.tasks) + epoch + 1,
            loss=losses.pop("loss"),
            terms=losses,
            learning_rate=float(f"{training.schedule.rate(epoch):.6g}"),
            seconds=round(self._noted_at - before, 4),
        )

    def _keep(self, now: bool = False) -> None:
        """Write a checkpoint if one is due or the run is to stop, and then stop if it is to."""
        asked, wait = self.stop.asked, self.checkpoint_seconds
        if now or asked or (wait and time.monotonic() - self._saved_at >= wait):
            self._save()
        if asked:
            where = f"in {self._place}"
            if self.folder is not None:
                where += (
                    f"; what is done is in {self.folder.path}, and the same command continues from "
                    "there"
                )
            raise self.stop.interrupted(where)

    def _save(self) -> None:
        """Write the state of the run, if it has a folder."""
        if self.folder is None:
            return
        snapshot = self.engine.snapshot()
        values = {
            **{key: self.head[key] for key in ("config", "stream", "pretrained_sha256")},
            **self._used(),
            "made_with": self._made_with(),
            "results": {**self.tally.matrices(), "tasks": self.tally.tasks},
            "row": self.row,
            "engine": snapshot.values,
        }
        path = self.folder.checkpoints.save(Checkpoint(values, snapshot.tensors))
        self._note("checkpoint", file=path.name, place=self._place)
        self._saved_at = time.monotonic()

    @property
    def _place(self) -> str:
        underway = self.engine.underway
        after = f" after epoch {underway.epochs} of training {underway.trainings + 1}"
        task = f"task {underway.task + 1} of {len(self.stream)}"
        return task + after if underway.epochs else task


def _most(*values: Any) -> Any:
    """Return the largest of some numbers, of which some may be unknown."""
    return max((value for value in values if value is not None), default=None)
