"""What must hold of a result in the ledger: its form, its name and configuration, its figures."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError, ResultError
from distillmatch.methods import find_method, with_options
from distillmatch.runs import Bound
from distillmatch.runs.machine import tree_in_history
from distillmatch.runs.result import STREAM_KEYS, Tally, config_of
from distillmatch.runs.schema import problems_of_form
from distillmatch.suite.names import run_name
from distillmatch.suite.plan import PlannedRun

Result = dict[str, Any]
CLOSE = 1e-6
"""Percent by which a figure may differ from the one computed again: the order of additions."""


def problems_of(
    result: Result, name: str | None, planned: Mapping[str, PlannedRun], bound: Bound | None = None
) -> list[str]:
    """Return what is wrong with a result that the ledger has under a name, a sentence each.

    Without a name it is of no ledger, and may be any run. `planned` are the runs of the experiments
    by their names. With the `bound` of its stream, Ω is computed again too.
    """
    problems = problems_of_form(result)
    if problems:
        return problems  # figures of something else cannot be computed
    try:
        config = config_of(result)
    except ResultError as error:
        return [str(error)]
    return [
        *_problems_of_options(config, result),
        *_problems_of_name(config, name, planned),
        *_problems_of_head(result),
        *(_problems_of_shape(result) or _problems_of_figures(result, bound)),
    ]


def remarks_on(result: Result, planned: Mapping[str, PlannedRun]) -> list[str]:
    """Return what a reader should know of a result that is not wrong."""
    remarks = []
    commit = result["commit"]
    if commit["id"] == "unknown":
        remarks.append("it was made by an unknown commit")
    elif commit["dirty"]:
        remarks.append("it was made with changes beside its commit")
    elif commit["dirty"] is None:
        committed = tree_in_history(commit["id"]) if "tree" in commit else None
        if committed is None:
            remarks.append("whether there were changes beside its commit is not known")
        elif committed != commit["tree"]:
            remarks.append("the code that made it is not that of its commit")
    if result["uses_truth"]:
        remarks.append("its method was given the truth")
    if run_name(config_of(result)) not in planned:
        remarks.append("no experiment has this run")
    return remarks


def _problems_of_options(config: RunConfig, result: Result) -> Iterable[str]:
    """Compare the options that a run had with those that its configuration gives today."""
    if ":" in config.method:
        return  # whose method is not imported for a check
    try:
        options = find_method(config.method).Options(**with_options(config).options)
    except ConfigError as error:
        yield str(error)
        return
    now = options.model_dump(mode="json")
    for key in {**now, **result["options"]}:
        if now.get(key) != result["options"].get(key):
            yield f"options.{key} is {result['options'].get(key)}, and {now.get(key)} by default"


def _problems_of_name(
    config: RunConfig, name: str | None, planned: Mapping[str, PlannedRun]
) -> Iterable[str]:
    """Compare the configuration with that of the experiment's run, and with the file's name."""
    if name in (None, run_name(config)):
        return
    run = planned.get(name or "")
    if run is None:
        yield f"its configuration is that of {run_name(config)}"
        return
    here, there = config.identity(), run.config.identity()
    listed = ", ".join(
        f"{key} is {here[key]} and not {there[key]}" for key in here if here[key] != there[key]
    )
    yield f"its configuration is not that of {' and '.join(run.experiments)}: {listed}"


def _problems_of_head(result: Result) -> Iterable[str]:
    """Compare what is said twice: beside the configuration, and in it."""
    config = result["config"]
    for key in ("method", "seed"):
        if result[key] != config[key]:
            yield f"{key} is {result[key]!r}, and {config[key]!r} in config"
    for key in STREAM_KEYS:
        # The number of tasks may follow from the source.
        if result["stream"][key] != config[key] and (key != "tasks" or config[key] is not None):
            yield f"stream.{key} is {result['stream'][key]!r}, and {config[key]!r} in config"
    learned, classes = sum(result["task_sizes"]), len(result["classes"])
    if learned != classes:
        yield f"task_sizes add up to {learned}, and there are {classes} classes"


def _problems_of_shape(result: Result) -> list[str]:
    """Look at what must fit before anything can be computed: counts of tasks, and triangles."""
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


def _problems_of_figures(result: Result, bound: Bound | None) -> Iterable[str]:
    """Compute what follows from the matrices and the tasks, and compare."""
    metrics, tasks = result["metrics"], result["tasks"]
    again = Tally.restored(tuple(result["task_sizes"]), result).metrics(None)
    expected = {
        "metrics.A_N": (metrics["A_N"], again["A_N"]),
        "metrics.bwt": (metrics["bwt"], again["bwt"]),
        "metrics.fgt": (metrics["fgt"], again["fgt"]),
        "metrics.accuracies": (metrics["accuracies"], again["accuracies"]),
        "tasks[].accuracy": ([task["accuracy"] for task in tasks], again["accuracies"]),
        "the diagonal of P": ([row[i] for i, row in enumerate(result["P"])], again["accuracies"]),
    }
    if metrics["omega_curve"]:
        expected["metrics.omega"] = (metrics["omega"], metrics["omega_curve"][-1])
    if bound is not None and metrics["omega"] is not None:
        measured = Tally.restored(tuple(result["task_sizes"]), result).metrics(bound)
        for key in ("omega", "omega_double_sum", "omega_curve"):
            expected[f"metrics.{key}"] = (metrics[key], measured[key])
    for field, (stored, computed) in expected.items():
        if not _close(stored, computed):
            yield f"{field} is {_shown(stored)}, and {_shown(computed)} from the matrices"
    for key in ("stored_images", "stored_bytes"):
        most = max((task[key] for task in tasks), default=0)
        if result["memory"][key] != most:
            yield f"memory.{key} is {result['memory'][key]}, and {most} at most in tasks"


def _close(stored: Any, computed: Any) -> bool:
    if isinstance(stored, list) and isinstance(computed, list):
        return len(stored) == len(computed) and all(map(_close, stored, computed))
    if stored is None or computed is None:
        return stored is computed
    return math.isclose(stored, computed, rel_tol=0, abs_tol=CLOSE)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return "null" if value is None else f"{value:.4f}"
