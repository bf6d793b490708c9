"""Several results side by side: a table in the terminal and one picture of accuracy over tasks."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from distillmatch.errors import ConfigError
from distillmatch.metrics import mean_and_deviation, omega

Result = dict[str, Any]

NAMES = {
    "base": "Base",
    "e2e": "E2E",
    "dr": "DR",
    "gd": "GD",
    "dm": "DM",
    "offline": "UB",
    "offline-unlabeled": "UB with unlabelled",
}
# After Okabe and Ito: apart for colour-blind readers. Markers differ too.
STYLES = {
    "offline": ("#000000", "s", "--"),
    "dm": ("#D55E00", "o", "-"),
    "gd": ("#0072B2", "^", "-"),
    "dr": ("#CC79A7", "D", "-"),
    "e2e": ("#009E73", "v", "-"),
    "base": ("#777777", "x", "-"),
    "offline-unlabeled": ("#56B4E9", "P", "--"),
}
FALLBACK = ("#E69F00", "*", "-")


def by_method(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Group results by method, each group being seeds of one."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result["method"]].append(result)
    return dict(groups)


def with_omega(results: Sequence[Result]) -> list[Result]:
    """Fill in Ω where a bound on the same stream is among the results."""
    bounds = {
        _stream_key(result): result["metrics"]["accuracies"]
        for result in results
        if result["method"] == "offline"
    }
    filled = []
    for result in results:
        offline = bounds.get(_stream_key(result))
        accuracies = result["metrics"]["accuracies"]
        metrics = dict(result["metrics"])
        if metrics["omega"] is None and offline is not None and len(offline) == len(accuracies):
            metrics["omega"] = omega(np.array(accuracies), np.array(offline))
        filled.append({**result, "metrics": metrics})
    return filled


def comparison_table(results: Sequence[Result]) -> Table:
    """Return methods against metrics, mean ± deviation over seeds."""
    table = Table(title="percent, mean ± standard deviation over seeds")
    table.add_column("method")
    for name in ("seeds", "A_N", "Ω", "BWT", "FGT", "stored", "seconds"):
        table.add_column(name, justify="right")
    for method, group in by_method(with_omega(results)).items():
        table.add_row(
            NAMES.get(method, method) + (" (oracle)" if group[0]["uses_truth"] else ""),
            str(len(group)),
            *(
                _cell([result["metrics"][key] for result in group])
                for key in ("A_N", "omega", "bwt", "fgt")
            ),
            f"{max(result['memory']['stored_images'] for result in group):,}",
            f"{np.mean([result['seconds']['total'] for result in group]):.1f}",
        )
    return table


def task_table(result: Result) -> Table:
    """Return one run task by task, with the diagnostics of its gate."""
    table = Table(title=f"{NAMES.get(result['method'], result['method'])}, seed {result['seed']}")
    keys = ("accepted", "accepted_past", "pseudo_labels_right", "auroc", "tpr", "fpr")
    shown = [key for key in keys if any(t["detector"][key] is not None for t in result["tasks"])]
    for name in ("task", "accuracy", "on its own", *(key.replace("_", " ") for key in shown)):
        table.add_column(name, justify="right")
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
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.ticker import MaxNLocator  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigError(
            "drawing results needs matplotlib: pip install 'distillmatch[report]'"
        ) from None

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    groups = by_method(results)
    order = [m for m in STYLES if m in groups] + [m for m in groups if m not in STYLES]
    for method in order:
        color, marker, line = STYLES.get(method, FALLBACK)
        curves = np.array([result["metrics"]["accuracies"] for result in groups[method]])
        tasks = np.arange(1, curves.shape[1] + 1)
        mean = curves.mean(axis=0)
        axes.plot(tasks, mean, line, color=color, marker=marker, label=NAMES.get(method, method))
        axes.fill_between(tasks, curves.min(0), curves.max(0), color=color, alpha=0.15, lw=0)
        axes.annotate(
            f"{mean[-1]:.1f}", (tasks[-1], mean[-1]), (6, 0), textcoords="offset points",
            va="center", color=color,
        )  # fmt: skip
    stream = results[0]["stream"]
    axes.set(
        title=f"{stream['source']}: {len(results[0]['task_sizes'])} tasks, "
        f"unlabelled {results[0]['config']['unlabeled']}",
        xlabel="tasks learned",
        ylabel="accuracy over all classes seen, %",
        ylim=(0, 100),
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _stream_key(result: Result) -> str:
    return repr(sorted(result["stream"].items()))


def _cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean, deviation = mean_and_deviation(known)
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"
