"""Figures as SVG text: lines over tasks, and all cells of the tables at a glance.

Colors are variables of `style.css`, so that one figure reads on light and dark pages and on paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from math import ceil, sqrt

from distillmatch.report.cells import METRICS, Figure, TableModel

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 360, 44, 346, 62, 252
"""Of a figure of lines: its width, and where the axes are."""
STYLE = (files("distillmatch.report") / "style.css").read_text(encoding="utf-8")
LOOKS = {
    "offline": ("ink", "6 4"),
    "dm": ("vermilion", ""),
    "worldmatch": ("green", ""),
    "gd": ("blue", "2 3"),
    "base": ("gray", "9 3 2 3"),
    "e2e": ("green", "4 2"),
}
"""The color and the dashes of a method's line."""
T_OF_TWO = 4.303
"""The 97.5 % point of Student's t with two degrees of freedom: of one more run after three."""


@dataclass(frozen=True)
class Series:
    """One line of a figure, by task from the first, which looks as that of the method `look`."""

    name: str
    look: str
    values: Sequence[float | None]


def line_figure(title: str, below: str, series: Sequence[Series]) -> str:
    """Return percentages over tasks, from 0 to a round number, and a legend of the lines."""
    values = [value for one in series for value in one.values if value is not None]
    highest = min(100, 10 * (int(max(values)) // 10 + 1))
    last = max(len(one.values) for one in series)

    def at(task: int, value: float) -> tuple[float, float]:
        across = LEFT + (task - 1) / max(1, last - 1) * (RIGHT - LEFT)
        return across, BOTTOM - value / highest * (BOTTOM - TOP)

    parts = [words(12, 20, title, "title"), words(12, 37, shortened(below, 62), "small")]
    parts += [words(14, TOP - 9, "%", "small"), words(180, BOTTOM + 33, "task", "small")]
    for tick in range(0, highest + 1, 20 if highest > 50 else 10):
        y = at(1, tick)[1]
        parts.append(f'<path class="rule" d="M{LEFT} {y:.1f}H{RIGHT}"/>')
        parts.append(words(LEFT - 6, y + 4, str(tick), "small", "end"))
    for task in range(1, last + 1, ceil(last / 10)):
        parts.append(words(at(task, 0)[0], BOTTOM + 16, str(task), "small", "middle"))
    for number, one in enumerate(series):
        color, dashes = LOOKS[one.look]
        known = [(task, value) for task, value in enumerate(one.values, 1) if value is not None]
        x, y = 16 + number % 2 * 180, BOTTOM + 54 + number // 2 * 19
        drawn = "L".join(f"{a:.1f} {b:.1f}" for a, b in (at(*point) for point in known))
        parts.append(f'<g class="{color}"><path class="line" d="M{drawn}" stroke-dasharray="')
        parts.append(f'{dashes}"/><path class="line" d="M{x} {y - 4}h26" stroke-dasharray="')
        parts.append(f'{dashes}"/>{words(x + 32, y, shortened(one.name, 22))}')
        for task, value in known:
            parts.append(dot(*at(task, value), f"{one.name}, {task}: {value:.1f}"))
        parts.append("</g>")
    return svg(parts, WIDTH, BOTTOM + 54 + ceil(len(series) / 2) * 19, f"{title}: {below}")


ROW, NAMES, SCALE, HEAD, START = 15, 168, 190, 22, 44
"""Of the figure of all cells: heights and widths of its rows, names, axes and headings."""
HIGHEST = {"A_N": 60}
"""Where an axis ends, in percent, if not at 100."""
COLORS = {"agrees": "blue", "higher": "vermilion", "lower": "vermilion", None: "gray"}


def glance_svg(models: Sequence[TableModel], metrics: Sequence[str] = ("A_N", "omega")) -> str:
    """Return published figures and ours, a row a cell, a panel a metric side by side."""
    rows = [(model, row) for model in models for row in model.rows if row.cell.published]
    height = START + ROW * len(rows) + HEAD * len({model.experiment.name for model, _ in rows})
    parts, panel = [], NAMES + SCALE + 22
    for number, metric in enumerate(metrics):
        parts.append(f'<g transform="translate({number * panel} 0)">')
        parts.append(words(12, 18, f"{METRICS[metric]}, percent", "title"))
        highest = HIGHEST.get(metric, 100)
        for tick in range(0, highest + 1, 20):
            x = NAMES + SCALE * tick / highest
            parts.append(f'<path class="rule" d="M{x:.1f} {START - 8}V{height + 10}"/>')
            parts.append(words(x, START - 12, str(tick), "small", "middle"))
        y, before = START, None
        for model, row in rows:
            if model is not before:
                y, before = y + HEAD, model
                name = f"{model.experiment.name}: {model.experiment.title}"
                parts.append(words(12, y - 6, shortened(name, 62), "small"))
            label = f"{row.cell.row}, {row.cell.column}"
            parts.append(words(NAMES - 8, y + 10, shortened(label, 26), "small", "end"))
            if metric in row.figures:
                parts += _marks(row.figures[metric], y + 6, label, highest)
            y += ROW
        bar = "bar: where 95 % of runs like the published ones lie"
        filled = "filled: ours, blue if it agrees, else vermilion; hollow: archived"
        parts += [words(12, height + 32, bar, "small"), words(12, height + 48, filled, "small")]
        parts.append("</g>")
    label = "Published figures and ours, cell by cell"
    return svg(parts, panel * len(metrics), height + 62, label, STYLE)


def _marks(figure: Figure, y: int, label: str, highest: float) -> list[str]:
    """Return what was published, with the range of one more such run, and what ours gave."""

    def at(value: float) -> str:
        return f"{NAMES + SCALE * min(max(value / highest, 0.0), 1.0):.1f}"

    marks = []
    if figure.published is not None:
        mean, deviation = figure.published.mean, figure.published.deviation or 0.0
        reach = T_OF_TWO * deviation * sqrt(1.5) * sqrt(1 + 1 / 3)
        marks.append(
            f'<path class="range" d="M{at(mean - reach)} {y}H{at(mean + reach)}"/>'
            f'<path class="axis" d="M{at(mean)} {y - 5}v10"/>'
        )
    if figure.mean is not None:
        kind = f"{COLORS[figure.verdict]}{' hollow' * bool(figure.archived)}"
        shown = dot(float(at(figure.mean)), y, f"{label}: {figure.mean:.1f}")
        marks.append(f'<g class="{kind}">{shown}</g>')
    return marks


def dot(x: float, y: float, title: str) -> str:
    """Return a mark; its title is what a pointer over it shows."""
    circle = f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="3.4">'
    return f"{circle}<title>{escape(title)}</title></circle>"


def words(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text, in which the N of A_N is an index."""
    lowered = 'A<tspan dy="3" font-size="9">N</tspan><tspan dy="-3">&#8203;</tspan>'
    said = escape(text).replace("A_N", lowered)
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{said}</text>'


def svg(parts: Sequence[str], width: float, height: float, label: str, style: str = "") -> str:
    """Return the whole figure; `style` is put into a figure that is a file of its own."""
    inner = f"<style>{style}</style>" if style else ""
    ground = f'<rect class="ground" width="{width:g}" height="{height:g}" rx="6"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'aria-label="{escape(label)}">{inner}{ground}{"".join(parts)}</svg>'
    )


def shortened(text: str, count: int) -> str:
    """Cut text with an ellipsis to at most `count` characters."""
    return text if len(text) <= count else text[: count - 1].rstrip() + "…"
