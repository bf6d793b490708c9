"""Choosing hyperparameters as the paper does: on folds of the training data of half of the tasks.

Results are the only state. A trial's runs lie in folders named by its configuration and its folds,
so what is finished is never run again, whichever search asks for it.
"""

import json
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

from distillmatch.config import PLACE_KEYS, Config, RunConfig, StreamConfig
from distillmatch.config.base import Count
from distillmatch.errors import ConfigError, ResultError, RunFolderError, TrainingError
from distillmatch.files import read_record, write_atomically
from distillmatch.metrics import mean_and_deviation
from distillmatch.runs import read_result
from distillmatch.runs.folder import RESULT, differences
from distillmatch.runs.result import recorded_config
from distillmatch.runs.side_by_side import Job
from distillmatch.sources import Dataset, load_source, verify
from distillmatch.streams import build_stream
from distillmatch.suite.names import run_name
from distillmatch.suite.space import SEARCHES, Space, Values, check_space, start_values, with_values

FORMAT, VERSION = "distillmatch tuning", 1
RECORD, BEST = "trials.json", "best.yaml"
Work = Callable[[Sequence[Job]], dict[str, str]]
"""Does runs, and returns by name why some of them failed."""
Trial = dict[str, Any]
"""One point of the space as it is recorded: the metric on each fold, or why there is none."""


class Fold(NamedTuple):
    """A fold's stream, where it is saved, and what identifies its results."""

    name: str
    path: Path
    fingerprint: str


class Selection(Config):
    """How hyperparameters are chosen: the search, the folds and the metric."""

    search: Literal["coordinate", "grid"] = "coordinate"
    folds: Count = 3
    tasks: Count | None = None
    metric: Literal["A_N", "bwt", "fgt"] = "A_N"

    def score(self, trial: Trial) -> float | None:
        """Return how good a trial is, higher being better."""
        mean: float | None = trial["mean"]
        return -mean if mean is not None and self.metric == "fgt" else mean

    def number_of_trials(self, space: Space) -> int:
        """Return how many points the search tries."""
        sizes = [len(values) for values in space.values()]
        return prod(sizes) if self.search == "grid" else 1 + sum(sizes) - len(sizes)


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
        tell: Callable[[str], None],
        dataset: Dataset | None = None,
    ) -> None:
        self.config = config
        self.out = out
        self.space = check_space(space, config)
        self.selection = selection
        self.total = selection.number_of_trials(self.space)
        self.trials: dict[str, Trial] = {}
        self._work, self._tell = work, tell
        self._began, self._run_here = time.monotonic(), 0
        self._check_same_tuning()
        self._folds = self._saved_folds(dataset or load_source(config))

    def run(self) -> dict[str, Any]:
        """Try what the search proposes until it is over, and return the record of all trials."""
        folds = self.selection.folds
        self._tell(f"{self.total} trials, on {folds} folds each: {self.total * folds} runs")
        start = start_values(self.config, self.space)
        SEARCHES[self.selection.search](self.space, start, self._scores)
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

    def _check_same_tuning(self) -> None:
        """Refuse a folder in which another configuration was tuned: its choice would be lost."""
        path = self.out / RECORD
        if not path.exists():
            return
        record = read_record(path, "record of a tuning", FORMAT, VERSION, RunFolderError)
        if not isinstance(recorded := record.get("config"), dict):
            raise RunFolderError(f"{path}: config: expected names with values")
        if listed := differences(recorded, self.config, PLACE_KEYS):
            raise RunFolderError(
                f"{self.out} holds another tuning: {listed}; choose another folder"
            )

    def _saved_folds(self, dataset: Dataset) -> list[Fold]:
        """Save each fold's stream, under a name that no other stream has."""
        verify(dataset)
        values = self.config.model_dump(include=set(StreamConfig.model_fields))
        stream = build_stream(dataset, StreamConfig(**values))
        chosen, folds = self.selection, list[Fold]()
        streams = stream.validation_folds(chosen.folds, chosen.tasks)
        if chosen.metric != "A_N" and len(streams[0]) < 2:
            raise ConfigError(f"metric '{chosen.metric}' needs at least two validation tasks")
        for number, fold in enumerate(streams, 1):
            identity = f"{fold.fingerprint}/{fold.digest}"
            digest = sha256(identity.encode()).hexdigest()[:12]
            name = f"fold{number}of{chosen.folds}-{digest}"
            path = self.out / "folds" / f"{name}.json"
            fold.save(path)
            folds.append(Fold(name, path, identity))
        return folds

    def _scores(self, points: list[Values]) -> list[float | None]:
        """Return how good the points are, running those of which something is missing."""
        configs = [with_values(self.config, values) for values in points]
        names = [run_name(config) for config in configs]
        jobs = {
            name: [
                Job(
                    f"{name}/{fold.name}", config, self.out / "trials" / name / fold.name, fold.path
                )
                for fold in self._folds
            ]
            for name, config in zip(names, configs, strict=True)
            if name not in self.trials
        }
        missing = [job for runs in jobs.values() for job in runs if self._figure(job) is None]
        failures = self._work(missing) if missing else {}
        self._run_here += len({job.name.partition("/")[0] for job in missing})
        for name, values in zip(names, points, strict=True):
            if name not in self.trials:
                self.trials[name] = self._trial(name, values, jobs[name], failures)
        self._write()
        return [self.selection.score(self.trials[name]) for name in names]

    def _trial(self, name: str, values: Values, runs: list[Job], failures: dict[str, str]) -> Trial:
        known = [figure for job in runs if (figure := self._figure(job)) is not None]
        mean = deviation = failed = None
        if len(known) == len(runs):
            mean, deviation = mean_and_deviation(known)
        else:
            reasons = (failures[job.name] for job in runs if job.name in failures)
            failed = next(reasons, "a run of it left no result")
        return {
            "name": name,
            "values": values,
            "figures": known,
            "mean": mean,
            "deviation": deviation,
            "failed": failed,
        }

    def _figure(self, job: Job) -> float | None:
        """Return the metric of a finished run; a result of another stream is none."""
        if not (job.out / RESULT).exists():
            return None
        try:
            result = read_result(job.out)
        except ResultError:
            return None  # whoever runs it says what is wrong
        learned = next(fold.fingerprint for fold in self._folds if fold.path == job.stream)
        if not result["complete"] or result["stream"]["fingerprint"] != learned:
            return None
        return float(result["metrics"][self.selection.metric])

    def _ranked(self) -> list[Trial]:
        def key(trial: Trial) -> tuple[bool, float]:
            score = self.selection.score(trial)
            return score is None, -(score or 0.0)

        return sorted(self.trials.values(), key=key)

    def _write(self) -> None:
        """Write the record and the best configuration, and say how far it is."""
        text = json.dumps(self.record(), indent=1, allow_nan=False)
        write_atomically(self.out / RECORD, text + "\n", "writing the trials")
        best, done = self._ranked()[0], len(self.trials)
        said = f"{done} of {self.total} trials"
        if not best["failed"]:
            chosen = with_values(self.config, best["values"])
            write_atomically(self.out / BEST, chosen.to_yaml(), "writing the best configuration")
            values = ", ".join(f"{name} {value}" for name, value in best["values"].items())
            said += f", best so far {self.selection.metric} {best['mean']:.2f} by {values}"
        if done < self.total and self._run_here:
            pace = (time.monotonic() - self._began) / self._run_here
            said += f", about {pace * (self.total - done) / 60:.1f} min left"
        self._tell(said)
