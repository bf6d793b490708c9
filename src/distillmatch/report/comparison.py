"""Several results side by side: a table in the terminal and one picture of accuracy over tasks."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError
from distillmatch.files import write_atomically
from distillmatch.metrics import mean_and_deviation, omega, omega_curve
from distillmatch.runs.result import VERSION, complete_record

Result = dict[str, Any]

BOUNDS = ("offline", "offline-unlabeled")
CUT_KEYS = ("tasks", "task_sizes")
"""What cuts the classes of a stream into tasks, in whatever order they come."""
SHOWN = {"A_N": "A_N", "omega": "Ω", "bwt": "BWT", "fgt": "FGT"}
NAMES = {
    "base": "Base",
    "e2e": "E2E",
    "dr": "DR",
    "gd": "GD",
    "dm": "DM",
    "worldmatch": "WorldMatch",
    "er": "ER",
    "pseudo-er": "PseudoER",
    "csl": "CSL",
    "nncsl": "NNCSL",
    "offline": "UB",
    "offline-unlabeled": "UB with unlabeled",
}
# After Okabe and Ito: apart for color-blind readers. Markers differ too.
STYLES = {
    "offline": ("#000000", "s", "--"),
    "dm": ("#D55E00", "o", "-"),
    "worldmatch": ("#E69F00", "*", "-"),
    "gd": ("#0072B2", "^", "-"),
    "dr": ("#CC79A7", "D", "-"),
    "e2e": ("#009E73", "v", "-"),
    "base": ("#777777", "x", "-"),
    "offline-unlabeled": ("#56B4E9", "P", "--"),
}
FALLBACK = ("#999933", "h", "-")
FURTHER_LINES = ("-", ":", "-.")
DETECTOR = {
    "accepted": "taken",
    "accepted_past": "past",
    "pseudo_labels_right": "right",
    "auroc": "AUROC",
    "tpr": "TPR",
    "fpr": "FPR",
}


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    method: str
    name: str
    results: tuple[Result, ...]


def recorded(result: Result) -> dict[str, Any]:
    """Return a recorded configuration with the method's options beside the rest."""
    config: dict[str, Any] = result["config"]
    if result["version"] == VERSION:
        config = complete_record(config)
    options = config.get("options", {})
    return {**{key: value for key, value in config.items() if key != "options"}, **options}


def grouped(results: Sequence[Result]) -> list[Group]:
    """Put the seeds of one configuration together.

    Where a method was run with several configurations, or runs are of several streams, the name of
    each group says in what it differs from the others. A run that is given twice counts once. Runs
    that are not finished stand apart, as do those that learned with a seed once more: neither is
    one more seed of the finished ones.
    """
    once = {}
    for result in results:  # a ledger may have filled in Ω, so the metrics are not compared
        config = repr(sorted(_compared(result).items()))
        # The folds of a tuning share a seed, not the fingerprint.
        learned = f"{config} {result['seed']} {result['stream']['fingerprint']}"
        measured = f"{result['metrics']['accuracies']} {result['seconds']['total']}"
        once[learned, measured] = config, learned, result
    by_config: dict[tuple[str, str], list[Result]] = defaultdict(list)
    times_learned: Counter[str] = Counter()
    for config, learned, result in once.values():
        apart = ""
        if not result["complete"]:
            apart = f" (unfinished: {len(result['tasks'])} of {len(result['task_sizes'])} tasks)"
        times_learned[learned + apart] += 1
        if times_learned[learned + apart] > 1:
            apart += f" (run {times_learned[learned + apart]} of the same seed)"
        by_config[config, apart].append(result)
    groups = []
    every = [_compared(members[0]) for members in by_config.values()]
    for (_, remark), members in by_config.items():
        method: str = members[0]["method"]
        own = _compared(members[0])
        alike = [other for other in every if other["method"] == method]
        said = ", ".join(
            f"{key} {own[key]}"
            for key in own
            if _differs(key, own, every if key in StreamConfig.model_fields else alike)
        )
        oracle = " (oracle)" if members[0]["uses_truth"] else ""
        name = NAMES.get(method, method) + (f" ({said})" if said else "") + oracle + remark
        groups.append(Group(method, name, tuple(members)))
    return groups


def _differs(key: str, own: dict[str, Any], others: Sequence[dict[str, Any]]) -> bool:
    """Return whether a value tells configurations apart; some methods see no unlabeled images."""
    if key == "unlabeled":
        others = [other for other in others if "none" not in (own[key], other.get(key))]
    return any(other.get(key) != own[key] for other in others)


def _compared(result: Result) -> dict[str, Any]:
    """Return what makes a configuration another one: all but the seed and the place it ran."""
    left_out = ("seed", "device", "precision")
    # How many tasks there are may have been said or not.
    config = {**recorded(result), "tasks": len(result["task_sizes"])}
    return {key: value for key, value in config.items() if key not in left_out}


def with_omega(results: Sequence[Result]) -> list[Result]:
    """Fill in Ω and its curve where a bound on the same stream is among the results.

    Of several bounds, the one counts that was trained most alike: with the same network first of
    all, then as long, then by the same recipe. One that cuts the classes into more tasks than a run
    does serves where none cuts them alike.
    """
    bounds: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if measures_omega(result):
            for key in _bound_keys(result):
                bounds[key].append(result)
    filled = []
    for result in results:
        found = [bound for key in _bound_keys(result) for bound in bounds.get(key, ())]
        # Those that cut alike come before finer ones, and stay in their order among themselves.
        found.sort(key=lambda bound: len(bound["task_sizes"]))
        curves = (_accuracies_of_bound(bound, result) for bound in found)
        offline = next((curve for curve in curves if curve is not None), None)
        metrics = dict(result["metrics"])
        if metrics["omega"] is None and offline is not None:
            accuracies = np.array(metrics["accuracies"])
            metrics["omega"] = omega(accuracies, np.array(offline))
            curve = omega_curve(accuracies, np.array(offline))
            metrics["omega_curve"] = None if curve is None else [float(value) for value in curve]
        filled.append({**result, "metrics": metrics})
    return filled


def measures_omega(result: Result) -> bool:
    """Tell whether a run is a bound that Ω is measured by: the paper's, that learns weak views."""
    strong = result["config"].get("strong_labels", False)
    return bool(result["method"] == "offline" and strong in (False, "none"))


def _accuracies_of_bound(bound: Result, result: Result) -> list[float] | None:
    """Return the bound's accuracy where each task of a complete run ends, if it has stages there.

    A stage learns the labeled images of all classes so far, however these are cut into tasks.
    """
    if bound["classes"] != result["classes"] or not result["complete"]:
        return None
    ends = accumulate(bound["task_sizes"])
    after = dict(zip(ends, bound["metrics"]["accuracies"], strict=False))
    wanted = list(accumulate(result["task_sizes"]))
    return [after[end] for end in wanted] if after.keys() >= set(wanted) else None


def comparison_table(results: Sequence[Result]) -> Table:
    """Return methods against metrics, mean ± deviation over seeds."""
    several = len({result["seed"] for result in results}) > 1
    table = Table(
        title="percent, mean ± standard deviation over seeds" if several else "percent, one seed"
    )
    table.add_column("method")
    for name in ("seeds", *SHOWN.values(), "stored", "seconds"):
        table.add_column(name, justify="right")
    for group in grouped(with_omega(results)):
        runs = group.results
        table.add_row(
            group.name,
            str(len(runs)),
            *(_cell([metrics_shown(result)[key] for result in runs]) for key in SHOWN),
            stored_shown(runs[0]),
            f"{np.mean([result['seconds']['total'] for result in runs]):.1f}",
        )
    return table


def metrics_shown(result: Result) -> dict[str, float | None]:
    """Return the figures that a table shows; a bound has no transfer and forgets nothing.

    It learns every stage from nothing, so that differences between stages say nothing about it.
    """
    bound = result["method"] in BOUNDS
    return {k: None if bound and k in ("bwt", "fgt") else result["metrics"][k] for k in SHOWN}


def stored_shown(result: Result) -> str:
    """Return the number of stored images in words: a bound stores all labeled ones."""
    return "all" if result["method"] in BOUNDS else f"{result['memory']['stored_images']:,}"


def code_shown(result: Result) -> str:
    """Return the commit in short, and whether that is all of the code that ran.

    Where only a copy ran, its files are named as git does, to be compared with the commit's.
    """
    commit = result["commit"]
    if commit["id"] == "unknown":
        return "unknown commit"
    copied = f", tree {commit['tree'][:8]}" if "tree" in commit else ", changes unknown"
    beside = {True: " with changes", False: "", None: copied}[commit["dirty"]]
    return f"{commit['id'][:8]}{beside}"


def task_table(result: Result) -> Table:
    """Return one run task by task, with the diagnostics of its gate."""
    table = Table(title=f"{NAMES.get(result['method'], result['method'])}, seed {result['seed']}")
    shown = [k for k in DETECTOR if any(t["detector"][k] is not None for t in result["tasks"])]
    for name in ("task", "accuracy", "own", *(DETECTOR[key] for key in shown)):
        table.add_column(name, justify="right")
    if shown:
        table.caption = (
            "taken: unlabeled images accepted; past: of these, truly of past classes; right: "
            "pseudo-label correct; AUROC, TPR, FPR: of the gate for the next task"
        )
    for number, task in enumerate(result["tasks"]):
        table.add_row(
            str(task["task"]),
            f"{task['accuracy']:.1f}",
            f"{result['R'][number][number]:.1f}",
            *("-" if task["detector"][k] is None else f"{task['detector'][k]:.1f}" for k in shown),
        )
    return table


def draw_comparison(results: Sequence[Result], path: Path) -> None:
    """Draw the accuracy over all classes seen so far, after each task, a line a method."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    axes = empty_figure(8, 5).add_subplot()
    place = {method: number for number, method in enumerate(STYLES)}
    drawn: Counter[str] = Counter()
    highest = max(max(result["metrics"]["accuracies"]) for result in results)
    for group in sorted(grouped(results), key=lambda group: place.get(group.method, 99)):
        color, marker, line = STYLES.get(group.method, FALLBACK)
        # Further configurations of a method keep its color and get another line.
        line = line if not drawn[group.method] else FURTHER_LINES[drawn[group.method] % 3]
        drawn[group.method] += 1
        lines = [result["metrics"]["accuracies"] for result in group.results]
        curves = np.array([one[: min(map(len, lines))] for one in lines])
        tasks, mean = np.arange(1, curves.shape[1] + 1), curves.mean(axis=0)
        axes.plot(
            tasks, mean, line, color=color, marker=marker, label=f"{group.name}: {mean[-1]:.1f}"
        )
        axes.fill_between(tasks, curves.min(0), curves.max(0), color=color, alpha=0.15, lw=0)
    streams = {_title(result) for result in results}
    axes.set(
        title=streams.pop() if len(streams) == 1 else "several streams",
        xlabel="tasks learned",
        ylabel="accuracy over all classes seen, %",
        ylim=(0, min(100, 1.15 * highest)),
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, title="after the last task")
    save_figure(axes.figure, path, "drawing the results")


def require_matplotlib() -> None:
    """Say that the extra is missing, before any work is done that would need it."""
    if find_spec("matplotlib") is None:
        raise ConfigError("drawing results needs matplotlib: pip install 'distillmatch[report]'")


def empty_figure(width: float, height: float) -> Any:
    """Return an empty figure of matplotlib."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path, doing: str) -> None:
    """Write a figure of matplotlib in the format that the file's name ends in."""
    buffer = BytesIO()
    figure.savefig(buffer, dpi=150, format=path.suffix[1:])
    write_atomically(path, buffer.getvalue(), doing)


def _title(result: Result) -> str:
    tasks, shown = len(result["task_sizes"]), result["config"].get("unlabeled")
    return f"{result['stream']['source']}: {tasks} tasks, unlabeled {shown}"


def _bound_keys(result: Result) -> list[str]:
    """Return what a run and its bound have in common: all that can be, then less and less."""
    stream = repr(sorted((k, v) for k, v in result["stream"].items() if k not in CUT_KEYS))
    config = recorded(result)
    trained = [config.get(key) for key in ("network", "epochs", "recipe")]
    return [f"{stream} {trained[:count]}" for count in range(len(trained), -1, -1)]


def _cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean, deviation = mean_and_deviation(known)
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"
