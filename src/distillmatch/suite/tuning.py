"""Choosing hyperparameters as the paper does: on folds of the training data of half of the tasks.

Results are the only state. A trial's runs lie in folders named by its configuration and its folds,
so what is finished is never run again, whichever search asks for it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Literal

import yaml

from distillmatch.config import PLACE_KEYS, RunConfig, StreamConfig, parse_yaml
from distillmatch.errors import ConfigError, RunFolderError, TrainingError
from distillmatch.files import read_record, write_atomically
from distillmatch.methods import find_method, with_options
from distillmatch.methods.detector import true_positive_rate
from distillmatch.methods.method import HIGH_RATE
from distillmatch.metrics import mean_and_deviation
from distillmatch.runs.folder import differences
from distillmatch.runs.result import found_result, recorded_config
from distillmatch.runs.side_by_side import Job
from distillmatch.sources import Dataset, load_source, verify
from distillmatch.streams import build_stream
from distillmatch.suite.names import run_name

FORMAT, VERSION = "distillmatch tuning", 1
RECORD, BEST, METRIC = "trials.json", "best.yaml", "A_N"
Values = dict[str, Any]
Space = dict[str, tuple[Any, ...]]
TryPoints = Callable[[list[Values]], list[float | None]]
"""Takes points, and returns scores, higher being better; `None` is that of a point that failed."""
Work = Callable[[Sequence[Job]], dict[str, str]]
"""Does runs, and returns by name why some of them failed."""
Trial = dict[str, Any]
"""One point of the space as it is recorded: A_N on each fold, or why there is none."""

PAPER: Space = {
    "learning_rate": (0.005, 0.01, 0.05, 0.1, 0.5),
    "consistency_weight": (0.1, 0.5, 1.0, 5.0),
    "true_positive_rate": (0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.95),
    "consistency_threshold": (0.7, 0.85, 0.9, 0.95),
}
"""The ranges of the paper's hyperparameter table, in its order."""


# What a search tries depends on the scores alone: one that was interrupted is simply begun again.


def grid(space: Space, start: Values, try_points: TryPoints) -> None:
    """Try every point, all at once."""
    try_points([dict(zip(space, values, strict=True)) for values in product(*space.values())])


def coordinate(space: Space, start: Values, try_points: TryPoints) -> None:
    """Go through one hyperparameter after the other, the others being the best so far."""
    best = start
    for name, values in space.items():
        points = [{**best, name: value} for value in values]
        scores = try_points(points)
        known = {place: score for place, score in enumerate(scores) if score is not None}
        if known:
            best = points[max(known, key=lambda place: known[place])]


SEARCHES = {"coordinate": coordinate, "grid": grid}


def paper_space(config: RunConfig) -> Space:
    """Return what the paper searched for a method: DM's four, the learning rate for all others.

    What an ablation takes away is left out.
    """
    chosen = find_method(config.method).Options(**config.options).model_dump()
    keys = {"learning_rate", *chosen}
    if chosen.get("consistency_weight") == 0:
        keys -= {"consistency_weight", "consistency_threshold"}
    if not chosen.get("pseudo_labels", True):
        keys.remove("true_positive_rate")
    return {key: values for key, values in PAPER.items() if key in keys}


def parse_space(words: Sequence[str], config: RunConfig) -> Space:
    """Return the space that words describe: `name=value,value` each."""
    space: Space = {}
    for written, _, listed in (word.partition("=") for word in words):
        name, values = written.replace("-", "_"), listed.split(",")
        if not name or not all(value.strip() for value in values):
            raise ConfigError(
                f"--space takes name=value,value without empty values, not '{written}={listed}'"
            )
        if name in StreamConfig.model_fields or name in PLACE_KEYS:
            raise ConfigError(f"--space: {name} is part of the setting, not a hyperparameter")
        if name in space:
            raise ConfigError(f"--space: {name} is given twice")
        try:
            given = [{name: parse_yaml(value)} for value in values]
            checked = (_value(with_values(config, one), name) for one in given)
            space[name] = tuple(dict.fromkeys(checked))  # 5 and 5.0 are one value
        except yaml.YAMLError:
            raise ConfigError(f"--space: '{listed}' is no list of values") from None
        except ConfigError as error:
            raise ConfigError(f"--space: {error}") from None
    return space


def with_values(config: RunConfig, values: Values) -> RunConfig:
    """Return the configuration with these hyperparameters, the method's options among them."""
    of_run = {key: value for key, value in values.items() if key in RunConfig.model_fields}
    of_method = {key: value for key, value in values.items() if key not in of_run}
    return with_options(config.replace(**of_run, options={**config.options, **of_method}))


def start_values(config: RunConfig, space: Space) -> Values:
    """Return where a search begins: the configuration's own values where they are in the lists.

    What it leaves to the method is what the paper chose; for others the middle of the list.
    """
    method = find_method(config.method)
    papers = {
        "learning_rate": HIGH_RATE if config.coreset else method.learning_rate,
        "consistency_threshold": method.recipe_of(config).consistency_threshold,
        "true_positive_rate": true_positive_rate(config, None),
    }
    start: Values = {}
    for name, values in space.items():
        own = _value(config, name)
        own = papers.get(name) if own is None else own
        start[name] = own if own in values else values[len(values) // 2]
    return start


def _value(config: RunConfig, name: str) -> Any:
    """Return a configuration's value of a field or of an option of its method."""
    if name in RunConfig.model_fields:
        return getattr(config, name)
    return getattr(find_method(config.method).Options(**config.options), name)


def tune(
    config: RunConfig,
    out: Path,
    space: Space,
    work: Work,
    tell: Callable[[str], None],
    *,
    search: Literal["coordinate", "grid"] = "coordinate",
    folds: int = 3,
    tasks: int | None = None,
    dataset: Dataset | None = None,
) -> dict[str, Any]:
    """Try what the search proposes until it is over, and return the record of all trials.

    `work` does the runs; `tell` is given a sentence on how far it is. The record has the trials so
    far, best first, and is written to `trials.json` after each batch; the best configuration stands
    in `best.yaml`.
    """
    _check_same_tuning(config, out)
    streams = _saved_folds(config, out, folds, tasks, dataset or load_source(config))
    trials: dict[str, Trial] = {}
    record: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "config": recorded_config(config),
        "space": {name: list(values) for name, values in space.items()},
        **{"search": search, "folds": folds, "tasks": tasks, "metric": METRIC},
        "streams": list(streams.values()),
    }
    sizes = [len(values) for values in space.values()]
    total = prod(sizes) if search == "grid" else 1 + sum(sizes) - len(sizes)
    tell(f"{total} trials, on {folds} folds each: {total * folds} runs")

    def try_points(points: list[Values]) -> list[float | None]:
        """Return how good the points are, running those of which something is missing."""
        tried, jobs = [], dict[str, list[Job]]()
        for values in points:
            chosen = with_values(config, values)
            name = run_name(chosen)
            folder = out / "trials" / name
            tried.append((name, values))
            places = [(f"{name}/{path.stem}", folder / path.stem, path) for path in streams]
            jobs[name] = [Job(run, chosen, place, path) for run, place, path in places]
        new = {name: values for name, values in tried if name not in trials}
        missing = [job for name in new for job in jobs[name] if _figure(job, streams) is None]
        failures = work(missing) if missing else {}
        for name, values in new.items():
            known = [one for job in jobs[name] if (one := _figure(job, streams)) is not None]
            reasons = [failures[job.name] for job in jobs[name] if job.name in failures]
            mean = deviation = failed = None
            if len(known) == folds:
                mean, deviation = mean_and_deviation(known)
            else:
                failed = [*reasons, "a run of it left no result"][0]
            trial = {"name": name, "values": values, "figures": known}
            trials[name] = {**trial, "mean": mean, "deviation": deviation, "failed": failed}
        ranked = sorted(trials.values(), key=lambda one: -(one["mean"] or 0.0))
        ranked.sort(key=lambda one: one["mean"] is None)
        best = None if ranked[0]["failed"] else ranked[0]["values"]
        record.update({"trials": ranked, "best": best})
        text = json.dumps(record, indent=1, allow_nan=False)
        write_atomically(out / RECORD, text + "\n", "writing the trials")
        said = f"{len(ranked)} of {total} trials"
        if best is not None:
            chosen = with_values(config, best)
            write_atomically(out / BEST, chosen.to_yaml(), "writing the best configuration")
            said_best = ", ".join(f"{name} {value}" for name, value in best.items())
            said += f", best so far {METRIC} {ranked[0]['mean']:.2f} by {said_best}"
        tell(said)
        return [trials[name]["mean"] for name, _ in tried]

    SEARCHES[search](space, start_values(config, space), try_points)
    if failed := record["trials"][0]["failed"]:
        raise TrainingError(f"all trials failed, the first for: {failed}")
    return record


def _figure(job: Job, streams: Mapping[Path, str]) -> float | None:
    """Return the metric of a finished run; a result of another stream is none."""
    result = found_result(job.out)
    if result is None or not result["complete"] or job.stream is None:
        return None
    is_its_own = result["stream"]["fingerprint"] == streams[job.stream]
    return float(result["metrics"][METRIC]) if is_its_own else None


def _check_same_tuning(config: RunConfig, out: Path) -> None:
    """Refuse a folder in which another configuration was tuned: its choice would be lost."""
    path = out / RECORD
    if not path.exists():
        return
    record = read_record(path, "record of a tuning", FORMAT, VERSION, RunFolderError)
    if not isinstance(recorded := record.get("config"), dict):
        raise RunFolderError(f"{path}: config: expected names with values")
    if listed := differences(recorded, config, PLACE_KEYS):
        raise RunFolderError(f"{out} holds another tuning: {listed}; choose another folder")


def _saved_folds(
    config: RunConfig, out: Path, count: int, tasks: int | None, dataset: Dataset
) -> dict[Path, str]:
    """Save each fold's stream under a name that no other stream has; return what they are."""
    verify(dataset)
    values = config.model_dump(include=set(StreamConfig.model_fields))
    stream = build_stream(dataset, StreamConfig(**values))
    folds = {}
    for number, fold in enumerate(stream.validation_folds(count, tasks), 1):
        identity = f"{fold.fingerprint}/{fold.digest}"
        digest = sha256(identity.encode()).hexdigest()[:12]
        path = out / "folds" / f"fold{number}of{count}-{digest}.json"
        fold.save(path)
        folds[path] = identity
    return folds
