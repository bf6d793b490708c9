"""What must hold of a result in the ledger: its name and configuration, its figures."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from distillmatch.config import RECIPES, RunConfig
from distillmatch.errors import ConfigError, ResultError
from distillmatch.methods import find_method, with_options
from distillmatch.runs.machine import tree_in_history
from distillmatch.runs.result import (
    LATER_STREAM_KEYS,
    STREAM_KEYS,
    Bound,
    Tally,
    bound_of,
    config_of,
)
from distillmatch.suite.catalogue import at_all_scales, experiment_names, load_experiment
from distillmatch.suite.names import BOUND, run_name
from distillmatch.suite.plan import PlannedRun, plan

Result = dict[str, Any]
Fact = tuple[str, Any, Any, str]
"""The name of what is recorded, its value, what it must be, and by what."""
COMPUTED = "from the matrices"
CLOSE = 1e-6
"""Percent by which a figure may differ from the one computed again: the order of additions."""


@dataclass
class Report:
    """What is wrong with a result, and what a reader should know of one that is right."""

    problems: list[str]
    remarks: list[str] = field(default_factory=list)


class Check:
    """Checks results one after another; no more of each is kept than the check of Ω needs.

    `planned` are the runs of the experiments by their names with seed 0.
    """

    def __init__(self, planned: Mapping[str, PlannedRun] | None = None) -> None:
        if planned is None:
            loaded = (load_experiment(name, one) for name in experiment_names() for one in RECIPES)
            experiments = [one for experiment in loaded for one in at_all_scales(experiment)]
            planned = {run.name: run for run in plan(experiments, [0])}
        self.planned = planned
        self._bounds: dict[str, list[Bound]] = {}
        self._waiting: list[tuple[Report, str, dict[str, Any], Tally]] = []

    def add(self, result: Result, name: str | None) -> Report:
        """Check a result that the ledger has under a name, if it is in one, but for Ω."""
        try:
            config = config_of(result)
            options = [*_options(config, result)]
        except (ResultError, ConfigError) as error:
            return Report([str(error)])
        tally, metrics = Tally(tuple(result["task_sizes"]), result), result["metrics"]
        facts = [*_recorded_twice(result), *_computed_again(result, tally)]
        report = Report(
            [*_wrong(options), *self._problems_of_name(config, name), *_wrong(facts)],
            [*self._remarks_on(config, result)],
        )
        if report.problems:
            return report
        stream = f"{config.recipe} {sorted(result['stream'].items())}"
        if config.method == BOUND and result["complete"]:
            self._bounds.setdefault(stream, []).append(bound_of(result))
        if metrics["omega"] is not None:
            tally.tasks = [{"test_images": task["test_images"]} for task in tally.tasks]
            self._waiting.append((report, stream, metrics, tally))
        return report

    def finish(self) -> None:
        """Compute every Ω again of which a bound of the same recipe and stream was checked."""
        for report, stream, metrics, tally in self._waiting:
            found: list[list[str]] = []
            for bound in self._bounds.get(stream, []):
                again = tally.metrics(bound)
                keys = ("omega", "omega_double_sum", "omega_curve")
                facts = [(f"metrics.{key}", metrics[key], again[key], COMPUTED) for key in keys]
                found.append(_wrong(facts))
            report.problems += sorted(found, key=len)[0] if found else []

    def _problems_of_name(self, config: RunConfig, name: str | None) -> Iterator[str]:
        """Compare the configuration with that of the experiment's run, and with the file's name."""
        if name in (None, run_name(config)):
            return
        run = self.planned.get(re.sub(r"seed\d+$", "seed0", name or ""))
        here, there = config.identity(), {} if run is None else run.config.identity()
        differing = [key for key in there if key != "seed" and here[key] != there[key]]
        if run is None or not differing:
            yield f"its configuration is that of {run_name(config)}"
        else:
            listed = ", ".join(f"{key} is {here[key]} and not {there[key]}" for key in differing)
            yield f"its configuration is not that of {' and '.join(run.experiments)}: {listed}"

    def _remarks_on(self, config: RunConfig, result: Result) -> Iterator[str]:
        commit = result["commit"]
        if commit["id"] == "unknown":
            yield "it was made by an unknown commit"
        elif commit["dirty"]:
            yield "it was made with changes beside its commit"
        elif commit["dirty"] is None:
            committed = tree_in_history(commit["id"]) if "tree" in commit else None
            if committed is None:
                yield "whether there were changes beside its commit is not known"
            elif committed != commit["tree"]:
                yield "the code that made it is not that of its commit"
        if result["uses_truth"]:
            yield "its method was given the truth"
        if run_name(config.replace(seed=0)) not in self.planned:
            yield "no experiment has this run"


def _options(config: RunConfig, result: Result) -> Iterator[Fact]:
    """Yield the options that a run had, beside those that its configuration gives today."""
    if ":" not in config.method:  # a result does not decide which module is imported
        options = find_method(config.method).Options(**with_options(config).options)
        now, then = options.model_dump(mode="json"), result["options"]
        for key in {**now, **then}:
            yield f"options.{key}", then.get(key), now.get(key), "by default"


def _recorded_twice(result: Result) -> Iterator[Fact]:
    """Yield what stands in two places of a result."""
    config, stream, tasks = result["config"], result["stream"], len(result["tasks"])
    stages, classes = len(result["task_sizes"]), len(result["classes"])
    for key in ("method", "seed"):
        yield key, result[key], config.get(key), "in config"
    for key in STREAM_KEYS:
        if key != "tasks" or config.get(key) is not None:  # it may follow from the source
            yield f"stream.{key}", stream[key], config.get(key), "in config"
    for key in LATER_STREAM_KEYS:
        yield f"stream.{key}", stream.get(key, 0), config.get(key, 0), "in config"
    yield "stream.tasks", stream["tasks"], stages, "by task_sizes"
    yield "the sum of task_sizes", sum(result["task_sizes"]), classes, "by classes"
    yield "complete", result["complete"], tasks == stages, f"with {tasks} of {stages} tasks"
    curve = result["metrics"]["omega_curve"]
    if curve is not None:
        yield "the length of metrics.omega_curve", len(curve), tasks, "by tasks"
    for key in ("stored_images", "stored_bytes"):
        most = max((task[key] for task in result["tasks"]), default=0)
        yield f"memory.{key}", result["memory"][key], most, "at most in tasks"


def _computed_again(result: Result, tally: Tally) -> Iterator[Fact]:
    """Yield what follows from the matrices and the tasks."""
    metrics, again = result["metrics"], tally.metrics(None)
    for key in ("A_N", "bwt", "fgt", "accuracies"):
        yield f"metrics.{key}", metrics[key], again[key], COMPUTED
    own = [task["accuracy"] for task in result["tasks"]]
    yield "tasks[].accuracy", own, again["accuracies"], COMPUTED
    diagonal = [row[i] for i, row in enumerate(result["P"])]
    yield "the diagonal of P", diagonal, again["accuracies"], COMPUTED
    if metrics["omega_curve"]:
        yield "metrics.omega", metrics["omega"], metrics["omega_curve"][-1], "by its curve"


def _wrong(facts: list[Fact]) -> list[str]:
    """Say which facts are recorded otherwise than they must be."""
    return [
        f"{name} is {_shown(stored)}, and {_shown(right)} {where}"
        for name, stored, right, where in facts
        if not _is_close(stored, right)
    ]


def _is_close(stored: Any, right: Any) -> bool:
    if isinstance(stored, list) and isinstance(right, list):
        return len(stored) == len(right) and all(map(_is_close, stored, right))
    if isinstance(stored, float) and isinstance(right, float):
        return math.isclose(stored, right, rel_tol=0, abs_tol=CLOSE)
    return bool(stored == right)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value:.4f}" if isinstance(value, float) else json.dumps(value)
