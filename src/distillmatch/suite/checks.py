"""What must hold of a result in the ledger: its name and configuration, its figures."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError, ResultError
from distillmatch.methods import find_method, with_options
from distillmatch.runs.machine import tree_in_history
from distillmatch.runs.result import STREAM_KEYS, Bound, Tally, bound_of, config_of
from distillmatch.suite.catalogue import at_all_scales, experiment_names, load_experiment
from distillmatch.suite.names import BOUND, run_name
from distillmatch.suite.plan import PlannedRun, plan

Result = dict[str, Any]
Planned = Mapping[str, PlannedRun]
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

    def __init__(self, planned: Planned | None = None) -> None:
        self.planned = _planned() if planned is None else planned
        self._bounds: dict[str, list[Bound]] = {}
        self._waiting: list[tuple[Report, str, dict[str, Any], Tally]] = []

    def add(self, result: Result, name: str | None) -> Report:
        """Check a result that `read_result` returned and that the ledger has under a name.

        Without a name it is of no ledger, and may be any run. The report is whole once `finish` was
        called.
        """
        try:
            config = config_of(result)
        except ResultError as error:
            return Report([str(error)])
        tally = None
        problems = [
            *_problems_of_options(config, result),
            *_problems_of_name(config, name, self.planned),
            *_problems_of_head(result),
        ]
        if shape := _problems_of_shape(result):
            problems += shape
        else:
            tally = Tally.restored(tuple(result["task_sizes"]), result)
            problems += _problems_of_figures(result, tally)
        report = Report(problems)
        if not problems and tally is not None:
            report.remarks += _remarks_on(config, result, self.planned)
            stream = f"{config.recipe} {sorted(result['stream'].items())}"
            if config.method == BOUND and result["complete"]:
                self._bounds.setdefault(stream, []).append(bound_of(result))
            if result["metrics"]["omega"] is not None:
                tally.tasks = [{"test_images": task["test_images"]} for task in tally.tasks]
                self._waiting.append((report, stream, result["metrics"], tally))
        return report

    def finish(self) -> None:
        """Compute every Ω again of which a bound of the same recipe and stream was checked."""
        for report, stream, metrics, tally in self._waiting:
            bounds = self._bounds.get(stream, [])
            found = [_problems_of_omega(metrics, tally, bound) for bound in bounds]
            report.problems += sorted(found, key=len)[0] if found else []


def _planned() -> Planned:
    names = experiment_names()
    experiments = [one for name in names for one in at_all_scales(load_experiment(name))]
    return {run.name: run for run in plan(experiments, [0])}


def _remarks_on(config: RunConfig, result: Result, planned: Planned) -> Iterator[str]:
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
    if run_name(config.replace(seed=0)) not in planned:
        yield "no experiment has this run"


def _problems_of_options(config: RunConfig, result: Result) -> Iterator[str]:
    """Compare the options that a run had with those that its configuration gives today."""
    if ":" in config.method:
        return  # whose method is not imported for a check
    try:
        options = find_method(config.method).Options(**with_options(config).options)
    except ConfigError as error:
        yield str(error)
        return
    now, then = options.model_dump(mode="json"), result["options"]
    for key in {**now, **then}:
        if now.get(key) != then.get(key):
            yield f"options.{key} is {then.get(key)}, and {now.get(key)} by default"


def _problems_of_name(config: RunConfig, name: str | None, planned: Planned) -> Iterator[str]:
    """Compare the configuration with that of the experiment's run, and with the file's name."""
    if name in (None, run_name(config)):
        return
    run = planned.get(re.sub(r"seed\d+$", "seed0", name or ""))
    here, there = config.identity(), {} if run is None else run.config.identity()
    differing = [key for key in there if key != "seed" and here[key] != there[key]]
    if run is None or not differing:
        yield f"its configuration is that of {run_name(config)}"
        return
    listed = ", ".join(f"{key} is {here[key]} and not {there[key]}" for key in differing)
    yield f"its configuration is not that of {' and '.join(run.experiments)}: {listed}"


def _problems_of_head(result: Result) -> Iterator[str]:
    """Compare what is recorded twice: beside the configuration, and in it."""
    config = result["config"]
    for key in ("method", "seed"):
        if result[key] != config.get(key):
            yield f"{key} is {result[key]!r}, and {config.get(key)!r} in config"
    for key in STREAM_KEYS:
        # The number of tasks may follow from the source.
        given = config.get(key)
        if result["stream"][key] != given and (key != "tasks" or given is not None):
            yield f"stream.{key} is {result['stream'][key]!r}, and {given!r} in config"
    learned, classes = sum(result["task_sizes"]), len(result["classes"])
    if learned != classes:
        yield f"task_sizes add up to {learned}, and there are {classes} classes"


def _problems_of_shape(result: Result) -> list[str]:
    """Return what does not fit so that nothing can be computed: counts of tasks, and triangles."""
    tasks, stages = len(result["tasks"]), len(result["task_sizes"])
    problems = []
    if result["stream"]["tasks"] != stages:
        problems.append(f"stream.tasks is {result['stream']['tasks']} for {stages} task_sizes")
    if result["complete"] != (tasks == stages):
        problems.append(f"complete is {result['complete']} with {tasks} of {stages} tasks")
    for key in ("R", "A", "P"):
        if len(result[key]) != tasks:
            problems.append(f"{key} has {len(result[key])} rows for {tasks} tasks")
        elif not all(
            (n <= i) == (value is not None) and (value is None or 0 <= value <= 100)
            for i, row in enumerate(result[key])
            for n, value in enumerate(row)
        ):
            problems.append(f"{key} must hold percentages up to its diagonal, and null above it")
    curve = result["metrics"]["omega_curve"]
    if curve is not None and len(curve) != tasks:
        problems.append(f"metrics.omega_curve has {len(curve)} figures for {tasks} tasks")
    return problems


def _problems_of_figures(result: Result, tally: Tally) -> Iterator[str]:
    """Compute what follows from the matrices and the tasks, and compare."""
    metrics, tasks, again = result["metrics"], result["tasks"], tally.metrics(None)
    pairs = {f"metrics.{key}": (metrics[key], again[key]) for key in ("A_N", "bwt", "fgt")}
    for field_name, figures in {
        "metrics.accuracies": metrics["accuracies"],
        "tasks[].accuracy": [task["accuracy"] for task in tasks],
        "the diagonal of P": [row[i] for i, row in enumerate(result["P"])],
    }.items():
        pairs[field_name] = figures, again["accuracies"]
    if metrics["omega_curve"]:
        pairs["metrics.omega"] = (metrics["omega"], metrics["omega_curve"][-1])
    yield from _differing(pairs)
    for key in ("stored_images", "stored_bytes"):
        most = max((task[key] for task in tasks), default=0)
        if result["memory"][key] != most:
            yield f"memory.{key} is {result['memory'][key]}, and {most} at most in tasks"


def _problems_of_omega(metrics: dict[str, Any], tally: Tally, bound: Bound) -> list[str]:
    again, keys = tally.metrics(bound), ("omega", "omega_double_sum", "omega_curve")
    return list(_differing({f"metrics.{key}": (metrics[key], again[key]) for key in keys}))


def _differing(pairs: Mapping[str, tuple[Any, Any]]) -> Iterable[str]:
    for name, (stored, computed) in pairs.items():
        if not _is_close(stored, computed):
            yield f"{name} is {_shown(stored)}, and {_shown(computed)} from the matrices"


def _is_close(stored: Any, computed: Any) -> bool:
    if isinstance(stored, list) and isinstance(computed, list):
        return len(stored) == len(computed) and all(map(_is_close, stored, computed))
    if stored is None or computed is None:
        return stored is computed
    return math.isclose(stored, computed, rel_tol=0, abs_tol=CLOSE)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return "null" if value is None else f"{value:.4f}"
