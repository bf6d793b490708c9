"""Plots by matplotlib, the extra `report`: accuracy over tasks, and the trials of a tuning."""

from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from distillmatch.errors import ConfigError
from distillmatch.files import write_atomically
from distillmatch.report.comparison import Result, grouped

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
METRICS = {"A_N": "accuracy A_N, %", "bwt": "backward transfer, %", "fgt": "forgetting, %"}


def draw_comparison(results: Sequence[Result], path: Path) -> None:
    """Draw the accuracy over all classes seen so far, after each task, a line a method."""
    figure = _figure(8, 5)
    axes = figure.add_subplot()
    place = {method: number for number, method in enumerate(STYLES)}
    drawn: Counter[str] = Counter()
    for group in sorted(grouped(results), key=lambda group: place.get(group.method, 99)):
        color, marker, line = STYLES.get(group.method, FALLBACK)
        if drawn[group.method]:  # further configurations keep the color and get another line
            line = FURTHER_LINES[drawn[group.method] % 3]
        drawn[group.method] += 1
        lines = [result["metrics"]["accuracies"] for result in group.results]
        curves = np.array([one[: min(map(len, lines))] for one in lines])
        tasks, mean = np.arange(1, curves.shape[1] + 1), curves.mean(axis=0)
        name = f"{group.name}: {mean[-1]:.1f}"
        axes.plot(tasks, mean, line, color=color, marker=marker, label=name)
        axes.fill_between(tasks, curves.min(0), curves.max(0), color=color, alpha=0.15, lw=0)
    axes.set(xlabel="tasks learned", ylabel="accuracy over all classes seen, %")
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, title="after the last task")
    _save(figure, path, "drawing the results")


def draw_tuning(record: dict[str, Any], path: Path) -> None:
    """Draw a panel for each hyperparameter: all trials but failed ones, and the best."""
    space, config = record["space"], record["config"]
    done = [trial for trial in record["trials"] if trial["failed"] is None]
    figure = _figure(max(5.0, 3.6 * len(space)), 4)
    panels = figure.subplots(1, len(space), sharey=True, squeeze=False)[0]
    for axes, (name, values) in zip(panels, space.items(), strict=True):
        points = [(values.index(trial["values"][name]), trial["mean"]) for trial in done]
        best = dict(sorted(points, reverse=record["metric"] == "fgt"))  # the last of a value counts
        axes.plot(*zip(*points, strict=True), "o", color="#777777", alpha=0.4, label="a trial")
        axes.plot(best.keys(), best.values(), "s-", color="#0072B2", label="best of a value")
        axes.plot(*points[0], "*", color="#D55E00", ms=16, label="best of all")
        axes.set_xticks(range(len(values)), [str(value) for value in values])
        axes.set_xlabel(name.replace("_", " "))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(METRICS[record["metric"]])
    panels[0].legend(frameon=False)
    figure.suptitle(
        f"{config['method']} on {config['source']}, unlabeled {config['unlabeled']}: "
        f"{len(record['trials'])} trials, {record['folds']} folds, search {record['search']}"
    )
    _save(figure, path, "drawing the trials")


def require_matplotlib() -> None:
    """Say that the extra is missing, before any work is done that would need it."""
    if find_spec("matplotlib") is None:
        raise ConfigError("drawing results needs matplotlib: pip install 'distillmatch[report]'")


def _figure(width: float, height: float) -> Any:
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: Path, doing: str) -> None:
    buffer = BytesIO()
    figure.savefig(buffer, dpi=150, format=path.suffix[1:])
    write_atomically(path, buffer.getvalue(), doing)
