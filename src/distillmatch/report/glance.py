"""All cells at a glance, as SVG: where one more run is expected, and what ours gave."""

from collections.abc import Sequence
from html import escape
from math import sqrt

from distillmatch.metrics import Verdict
from distillmatch.report.cells import METRICS, Figure, Row, TableModel
from distillmatch.report.svg import STYLE, shortened, svg, with_indices, words

ROW, LEFT, WIDTH, TOP, HEAD = 15, 168, 190, 44, 22
LETTERS = 26
HIGHEST = {"A_N": 60}
"""Where an axis ends, in percent, if not at 100."""
T_OF_TWO = 4.303
"""The 97.5 % point of Student's t with two degrees of freedom: of one more run after three."""
COLORS: dict[Verdict | None, str] = {
    "agrees": "blue",
    "higher": "vermilion",
    "lower": "vermilion",
    None: "gray",
}


def glance_svg(models: Sequence[TableModel], metrics: Sequence[str] = ("A_N", "omega")) -> str:
    """Return a figure with a row for each cell, and a panel for each metric side by side."""
    rows = [(model, row) for model in models for row in model.rows if row.cell.published]
    heads = sum(1 for n, (m, _) in enumerate(rows) if n == 0 or rows[n - 1][0] is not m)
    height, panel = TOP + ROW * len(rows) + HEAD * heads + 62, LEFT + WIDTH + 22
    panels = "".join(
        f'<g transform="translate({number * panel} 0)">{_panel(rows, metric, height)}</g>'
        for number, metric in enumerate(metrics)
    )
    label = "Published figures and ours, cell by cell"
    return svg(panels, height, label, panel * len(metrics), STYLE)


def _panel(rows: Sequence[tuple[TableModel, Row]], metric: str, height: float) -> str:
    """Return one metric of all cells."""
    title = with_indices(f"{METRICS[metric]}, percent")
    parts = [f'<text x="12" y="18" class="title">{title}</text>']
    highest = HIGHEST.get(metric, 100)
    for tick in range(0, highest + 1, 20):
        x = LEFT + WIDTH * tick / highest
        parts.append(f'<path class="rule" d="M{x:.1f} {TOP - 8}V{height - 52}"/>')
        parts.append(words(x, TOP - 12, str(tick), "small", "middle"))
    y, before = float(TOP), None
    for model, row in rows:
        if model is not before:
            y, before = y + HEAD, model
            name = f"{model.experiment.name}: {model.experiment.title}"
            parts.append(words(12, y - 6, shortened(name, 62), "small"))
        label = f"{row.cell.row}, {row.cell.column}"
        parts.append(words(LEFT - 8, y + 10, shortened(label, LETTERS), "small", "end"))
        if metric in row.figures:
            parts += _marks(row.figures[metric], LEFT, WIDTH, y + 6, escape(label))
        y += ROW
    bar, dot = (
        "bar: where 95 % of runs like the published ones lie",
        "filled: ours, blue if it agrees, else vermilion; hollow: archived",
    )
    parts += [words(12, height - 30, bar, "small"), words(12, height - 14, dot, "small")]
    return "".join(parts)


def _marks(figure: Figure, x: float, width: float, y: float, label: str) -> list[str]:
    def at(value: float) -> float:
        highest = HIGHEST.get(figure.metric, 100)
        return x + width * min(max(value / highest, 0.0), 1.0)

    marks = []
    if figure.published is not None:
        mean, deviation = figure.published.mean, figure.published.deviation or 0.0
        reach = T_OF_TWO * deviation * sqrt(1.5) * sqrt(1 + 1 / 3)
        low, middle, high = (f"{at(mean + step):.1f}" for step in (-reach, 0.0, reach))
        marks.append(
            f'<line class="axis" x1="{low}" x2="{high}" y1="{y}" y2="{y}" stroke-width="4" '
            f'opacity=".45"/><line class="axis" x1="{middle}" x2="{middle}" y1="{y - 5}" '
            f'y2="{y + 5}"/>'
        )
    if figure.mean is not None:
        fill = "none" if figure.archived else "currentColor"
        color = COLORS[figure.verdict]
        marks.append(
            f'<circle class="{color}" cx="{at(figure.mean):.1f}" cy="{y}" r="3.6" fill="{fill}" '
            f'stroke="currentColor" stroke-width="1.4"><title>{label}: {figure.mean:.1f}</title>'
            "</circle>"
        )
    return marks
