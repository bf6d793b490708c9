"""Choosing hyperparameters as the paper does: on folds of the training data of half of the tasks.

Results are the only state. A trial's runs lie in folders named by its configuration and its folds,
so what is finished is never run again, whichever search asks for it.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from distillmatch.config import PLACE_KEYS, Config, RunConfig, StreamConfig
from distillmatch.config.base import Count, impossible
from distillmatch.errors import ConfigError, ResultError, RunFolderError, TrainingError
from distillmatch.files import read_record, write_atomically
from distillmatch.metrics import mean_and_deviation
from distillmatch.runs import read_result
from distillmatch.runs.folder import RESULT, differences
from distillmatch.runs.result import recorded_config
from distillmatch.runs.side_by_side import Job
from distillmatch.sources import Dataset, load_source, verify
from distillmatch.streams import Stream, build_stream, validation_folds
from distillmatch.suite.names import run_name
from distillmatch.suite.search import (
    DRAWING,
    Score,
    SearchName,
    make_search,
    number_of_trials,
)
from distillmatch.suite.space import Space, Values, check_space, start_values, with_values

FORMAT = "distillmatch tuning"
VERSION = 1
RECORD = "trials.json"
BEST = "best.yaml"

Metric = Literal["A_N", "bwt", "fgt"]
LOWER_IS_BETTER = ("fgt",)
Work = Callable[[Sequence[Job]], dict[str, str]]
"""Does runs, and returns by name why some of them failed."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Fold:
    """A fold's stream, where it is saved, and what identifies its results."""

    name: str
    path: Path
    fingerprint: str


Trial = dict[str, Any]
"""One point of the space as it is recorded: the metric on each fold, or why there is none."""


class Selection(Config):
    """How hyperparameters are chosen: the search, the folds and the metric."""

    search: SearchName = "coordinate"
    trials: Count = 30
    together: Count = 3
    folds: int = 3
    tasks: int | None = None
    metric: Metric = "A_N"

    @model_validator(mode="after")
    def _can_search(self) -> Self:
        if self.search in DRAWING and find_spec("optuna") is None:
            needs = f"'{self.search}' needs Optuna: pip install 'distillmatch[tune]'"
            raise impossible("search", needs)
        return self

    def score(self, trial: Trial) -> Score:
        """Return how good a trial is, higher being better."""
        mean: float | None = trial["mean"]
        return -mean if mean is not None and self.metric in LOWER_IS_BETTER else mean


class Tuning:
    """One choice of hyperparameters, in a folder of its own.

    `work` does the runs; `tell` is given a sentence on how far it is. `record` describes all trials
    so far, best first, and is written to `trials.json` after each batch; the best configuration
    stands in `best.yaml`.
    """

    def __init__(
        self,
        config: RunConfig,
        out: Path,
        space: Space,
        selection: Selection,
        work: Work,
        tell: Tell,
        dataset: Dataset | None = None,
    ) -> None:
        self.config = config
        self.out = out
        self.space = check_space(space, config)
        self.selection = selection
        self.total = number_of_trials(selection.search, self.space, selection.trials)
        self.trials: dict[str, Trial] = {}
        self._work = work
        self._tell = tell
        self._began = time.monotonic()
        self._run_here = 0
        _check_same_tuning(out, config)
        self._folds = self._saved_folds(dataset)

    def run(self) -> dict[str, Any]:
        """Try what the search proposes until it is over, and return the record of all trials."""
        chosen = self.selection
        runs = self.total * chosen.folds
        self._tell(f"{self.total} trials at most, on {chosen.folds} folds each: {runs} runs")
        start, seed = start_values(self.config, self.space), self.config.seed
        search = make_search(chosen.search, self.space, start, chosen.trials, chosen.together, seed)
        points = next(search)
        while True:
            tried = self._try(points)
            self._write()
            self._tell_of_progress()
            try:
                points = search.send([chosen.score(trial) for trial in tried])
            except StopIteration:
                break
        if failed := self._ranked()[0]["failed"]:
            raise TrainingError(f"all trials failed, the first for: {failed}")
        return self.record()

    def record(self) -> dict[str, Any]:
        """Return all that was tried, best first, as JSON can hold it."""
        ranked = self._ranked()
        return {
            "format": FORMAT,
            "version": VERSION,
            "config": recorded_config(self.config),
            "space": {name: list(values) for name, values in self.space.items()},
            **self.selection.model_dump(),
            "streams": [fold.fingerprint for fold in self._folds],
            "trials": ranked,
            "best": None if ranked[0]["failed"] else ranked[0]["values"],
        }

    def _saved_folds(self, dataset: Dataset | None) -> tuple[Fold, ...]:
        """Save each fold's stream, under a name that no other stream has."""
        dataset = dataset or load_source(self.config)
        verify(dataset)
        values = self.config.model_dump(include=set(StreamConfig.model_fields))
        stream = build_stream(dataset, StreamConfig(**values))
        selection = self.selection
        streams = validation_folds(dataset, stream, selection.folds, selection.tasks)
        if selection.metric != "A_N" and len(streams[0]) < 2:
            raise ConfigError(f"metric '{selection.metric}' needs at least two validation tasks")
        return tuple(self._saved(fold, number) for number, fold in enumerate(streams, 1))

    def _saved(self, stream: Stream, number: int) -> Fold:
        identity = f"{stream.fingerprint}/{stream.digest}"
        digest = sha256(identity.encode()).hexdigest()[:12]
        name = f"fold{number}of{self.selection.folds}-{digest}"
        path = self.out / "folds" / f"{name}.json"
        stream.save(path)
        return Fold(name, path, identity)

    def _try(self, points: list[Values]) -> list[Trial]:
        """Return the trials of the points, running those of which something is missing."""
        jobs = {self._name(values): self._jobs(values) for values in points}
        missing = [
            job
            for name, runs in jobs.items()
            if name not in self.trials
            for fold, job in zip(self._folds, runs, strict=True)
            if self._figure(job, fold) is None
        ]
        failures = self._work(missing) if missing else {}
        self._run_here += len({job.name.partition("/")[0] for job in missing})
        for values in points:
            name = self._name(values)
            if name not in self.trials:
                self.trials[name] = self._trial(values, jobs[name], failures)
        return [self.trials[self._name(values)] for values in points]

    def _trial(self, values: Values, runs: list[Job], failures: dict[str, str]) -> Trial:
        figures = [self._figure(*pair) for pair in zip(runs, self._folds, strict=True)]
        known = [figure for figure in figures if figure is not None]
        mean = deviation = failed = None
        if len(known) < len(runs):
            reasons = [failures[job.name] for job in runs if job.name in failures]
            failed = reasons[0] if reasons else "a run of it left no result"
        else:
            mean, deviation = mean_and_deviation(known)
        return {
            "name": self._name(values),
            "values": values,
            "figures": known,
            "mean": mean,
            "deviation": deviation,
            "failed": failed,
        }

    def _name(self, values: Values) -> str:
        return run_name(with_values(self.config, values))

    def _jobs(self, values: Values) -> list[Job]:
        config, name = with_values(self.config, values), self._name(values)
        return [
            Job(f"{name}/{fold.name}", config, self.out / "trials" / name / fold.name, fold.path)
            for fold in self._folds
        ]

    def _figure(self, job: Job, fold: Fold) -> float | None:
        """Return the metric of a finished run; a result of another stream is none."""
        if not (job.out / RESULT).exists():
            return None
        try:
            result = read_result(job.out)
        except ResultError:
            return None  # whoever runs it says what is wrong
        if not result["complete"] or result["stream"]["fingerprint"] != fold.fingerprint:
            return None
        return float(result["metrics"][self.selection.metric])

    def _ranked(self) -> list[Trial]:
        def key(trial: Trial) -> tuple[bool, float]:
            score = self.selection.score(trial)
            return score is None, -(score or 0.0)

        return sorted(self.trials.values(), key=key)

    def _write(self) -> None:
        text = json.dumps(self.record(), indent=1, allow_nan=False)
        write_atomically(self.out / RECORD, text + "\n", "writing the trials")
        best = self._ranked()[0]
        if not best["failed"]:
            chosen = with_values(self.config, best["values"])
            write_atomically(self.out / BEST, chosen.to_yaml(), "writing the best configuration")

    def _tell_of_progress(self) -> None:
        best, done = self._ranked()[0], len(self.trials)
        said = f"{done} of {self.total} trials"
        if not best["failed"]:
            values = ", ".join(f"{name} {value}" for name, value in best["values"].items())
            said += f", best so far {self.selection.metric} {best['mean']:.2f} by {values}"
        if done < self.total and self._run_here:
            pace = (time.monotonic() - self._began) / self._run_here
            said += f", about {pace * (self.total - done) / 60:.1f} min left"
        self._tell(said)


def _check_same_tuning(out: Path, config: RunConfig) -> None:
    """Refuse a folder in which another configuration was tuned: its choice would be lost."""
    path = out / RECORD
    if not path.exists():
        return
    record = read_record(path, "record of a tuning", FORMAT, VERSION, RunFolderError)
    recorded = record.get("config")
    if not isinstance(recorded, dict):
        raise RunFolderError(f"{path}: config: expected names with values")
    listed = differences(recorded, config, PLACE_KEYS)
    if listed:
        raise RunFolderError(f"{out} holds another tuning: {listed}; choose another folder")
