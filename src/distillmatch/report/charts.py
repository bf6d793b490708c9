"""Charts by matplotlib, the extra `report`: accuracy over tasks, tunings, all cells at a glance.

As SVG they take their colors from `style.css` where a page has it, and read on dark pages, too.
"""

import re
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from distillmatch.errors import ConfigError
from distillmatch.files import write_atomically
from distillmatch.metrics import Verdict
from distillmatch.report import comparison
from distillmatch.report.comparison import Result, TableModel, grouped
from distillmatch.report.sheets import check_picture_name

# After Okabe and Ito: apart for color-blind readers. Markers differ too.
COLORS = {
    "ink": "#000000",
    "vermilion": "#d55e00",
    "blue": "#0072b2",
    "green": "#008a64",
    "gray": "#6e7681",
    "rule": "#d1d9e0",
    "paper": "#ffffff",
}
"""Those that are variables of `style.css`, with their values on a light page."""
INK, VERMILION, BLUE, GREEN, GRAY, RULE, _ = COLORS.values()
STYLES = {
    "offline": (INK, "s", "--"),
    "dm": (VERMILION, "o", "-"),
    "worldmatch": ("#e69f00", "*", "-"),
    "gd": (BLUE, "^", "-"),
    "dr": ("#cc79a7", "D", "-"),
    "e2e": (GREEN, "v", "-"),
    "base": (GRAY, "x", "-"),
    "offline-unlabeled": ("#56b4e9", "P", "--"),
}
FALLBACK = ("#999933", "h", "-")
METADATA = ("Creator", "Date", "Format", "Type")
"""What SVG is written without."""
ENDINGS = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp", ".tif", ".tiff")
VERDICTS: dict[Verdict | None, str] = {"agrees": BLUE, "higher": VERMILION, "lower": VERMILION}
RANGE = 4.303 * sqrt(1.5) * sqrt(1 + 1 / 3)
"""Published deviations within which 95 % of further runs lie: Student's t of two degrees."""
GLANCE = (
    "bar: where 95 % of runs like the published lie\n"
    "filled: ours, blue if it agrees; hollow: archived"
)


class Series(NamedTuple):
    """One line of a chart: runs by task from the first, drawn as a method is."""

    name: str
    method: str
    runs: Sequence[Sequence[float | None]]


def line_chart(title: str, below: str, series: Sequence[Series], size: tuple[float, float]) -> Any:
    """Return percentages over tasks: the mean over runs, within their range."""
    figure = _figure(*size)
    axes, drawn = figure.add_subplot(), Counter[str]()
    for name, method, runs in series:
        color, marker, line = STYLES.get(method, FALLBACK)
        if drawn[method]:  # further configurations keep the color and get another line
            line = ("-", ":", "-.")[drawn[method] % 3]
        drawn[method] += 1
        curves = np.array([run[: min(map(len, runs))] for run in runs], float)
        known = np.flatnonzero(~np.isnan(curves).any(axis=0))
        curves = curves[:, known]
        axes.plot(known + 1, curves.mean(0), line, color=color, marker=marker, label=name)
        axes.fill_between(known + 1, curves.min(0), curves.max(0), color=color, alpha=0.15, lw=0)
    axes.set(title=title, xlabel=below, ylabel="accuracy, %")
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(color=RULE)
    columns = 1 if max(len(one.name) for one in series) > 24 else 2
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
    return figure


def draw_comparison(results: Sequence[Result], path: Path) -> None:
    """Draw the accuracy over all classes seen so far, after each task, a line a method."""
    place = {method: number for number, method in enumerate(STYLES)}
    series = []
    for method, name, runs in sorted(grouped(results), key=lambda one: place.get(one.method, 99)):
        reached = np.mean([run["metrics"]["A_N"] for run in runs])
        curves = [run["metrics"]["accuracies"] for run in runs]
        series.append(Series(f"{name}: {reached:.1f}", method, curves))
    figure = line_chart("Accuracy over all classes seen", "tasks learned", series, (5.4, 5))
    _save(figure, path, "drawing the results")


def glance(models: Sequence[TableModel], metrics: Sequence[str] = ("A_N", "omega")) -> Any:
    """Return published figures and ours, a row a cell, a panel a metric side by side."""
    names, heads, rows = list[str](), list[int](), []
    for model in (model for model in models if model.is_compared):
        heads.append(len(names))
        names.append(model.experiment.name)
        for row in (row for row in model.rows if row.cell.published):
            rows.append((len(names), row.figures))
            names.append(_shortened(f"{row.cell.row}, {row.cell.column}", 26))
    figure = _figure(5 * len(metrics), 1.5 + 0.19 * len(names))
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        found = [(y, figures[metric]) for y, figures in rows if metric in figures]
        theirs = [(y, one.published) for y, one in found if one.published is not None]
        ours = [(y, one) for y, one in found if one.mean is not None]
        places, means = [y for y, _ in theirs], np.array([one.mean for _, one in theirs])
        reach = RANGE * np.array([one.deviation or 0.0 for _, one in theirs])
        axes.hlines(places, means - reach, means + reach, color=RULE, lw=5)
        axes.plot(means, places, "|", color=GRAY, ms=8, mew=1.5)
        edges = [VERDICTS.get(one.verdict, GRAY) for _, one in ours]
        fills = ["none" if one.archived else VERDICTS.get(one.verdict, GRAY) for _, one in ours]
        values = [one.mean for _, one in ours]
        axes.scatter(values, [y for y, _ in ours], 28, fills, edgecolors=edges, zorder=3)
        axes.set_yticks(range(len(names)), names)
        for y in heads:
            axes.get_yticklabels()[y].set_weight("bold")
        axes.set(ylim=(len(names), -1), xlim=(0, 60 if metric == "A_N" else 100))
        axes.tick_params(top=True, labeltop=True)
        axes.set_title(f"{comparison.METRICS[metric]}, percent")
        axes.grid(axis="x", color=RULE, lw=0.6)
    figure.supxlabel(GLANCE, fontsize="medium")
    return figure


def svg_of(figure: Any) -> str:
    """Return a figure as SVG text, the same for the same figure."""
    import matplotlib  # noqa: PLC0415

    buffer = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "distillmatch", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(METADATA))
    text = buffer.getvalue().decode()
    names = {color: f"var(--{name}, {color})" for name, color in COLORS.items()}
    text = re.sub("|".join(COLORS.values()), lambda found: names[found[0]], text)
    return text[text.index("<svg") :]


def is_installed() -> bool:
    """Return whether charts can be drawn."""
    return find_spec("matplotlib") is not None


def check_chart_name(path: Path) -> None:
    """Refuse a chart that cannot be drawn, before any work is done that would need it."""
    check_picture_name(path, ENDINGS)
    _require_matplotlib()


def _require_matplotlib() -> None:
    if not is_installed():
        raise ConfigError("charts need matplotlib: pip install 'distillmatch[report]'")


def _figure(width: float, height: float) -> Any:
    _require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path, doing: str) -> None:
    buffer = BytesIO()
    figure.savefig(buffer, dpi=150, format=path.suffix[1:])
    write_atomically(path, buffer.getvalue(), doing)


def _shortened(text: str, count: int) -> str:
    return text if len(text) <= count else text[: count - 1].rstrip() + "…"
