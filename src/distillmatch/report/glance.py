"""All cells at a glance, as SVG: where a new run is expected, and what ours gave."""

from collections.abc import Sequence
from html import escape
from math import sqrt

from distillmatch.metrics import Verdict
from distillmatch.report.cells import METRICS, Figure, TableModel
from distillmatch.report.svg import STYLE

ROW, LEFT, WIDTH, TOP, GAP, HEAD = 15, 250, 640, 44, 40, 22
LETTERS = 38
HIGHEST = {"A_N": 60}
"""Where an axis ends, in percent, if not at 100."""
T_OF_TWO = 4.303
"""The 97.5 % point of Student's t with two degrees of freedom: of one more run after three."""
COLORS: dict[Verdict | None, str] = {
    "agrees": "blue",
    "higher": "vermilion",
    "lower": "vermilion",
    None: "grey",
}


def glance_svg(models: Sequence[TableModel], metrics: Sequence[str] = ("A_N", "omega")) -> str:
    """Return a figure with a row for each cell and a panel for each metric."""
    rows = [(model, row) for model in models for row in model.rows if row.cell.published]
    panel = (WIDTH - GAP * (len(metrics) - 1)) / len(metrics)
    heads = sum(1 for n, (m, _) in enumerate(rows) if n == 0 or rows[n - 1][0] is not m)
    height = TOP + ROW * len(rows) + HEAD * heads + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" '
        f'viewBox="0 0 {LEFT + WIDTH + 16} {height}">',
        f"<title>Published figures and ours, cell by cell</title><style>{STYLE}</style>",
        f'<rect class="ground" width="{LEFT + WIDTH + 16}" height="{height}"/>',
    ]
    for number, metric in enumerate(metrics):
        x = LEFT + number * (panel + GAP)
        parts.append(f'<text class="title" x="{x:.0f}" y="18">{METRICS[metric]}, percent</text>')
        highest = HIGHEST.get(metric, 100)
        for tick in range(0, highest + 1, 20):
            at = f"{x + panel * tick / highest:.1f}"
            parts.append(
                f'<line class="rule" x1="{at}" x2="{at}" y1="{TOP - 8}" y2="{height - 24}"/>'
                f'<text class="small" x="{at}" y="{TOP - 12}" text-anchor="middle">{tick}</text>'
            )
    y, before = float(TOP), None
    for model, row in rows:
        if model is not before:
            y += HEAD
            name = escape(f"{model.experiment.name}: {model.experiment.title}")
            parts.append(f'<text class="small" x="4" y="{y - 6:.0f}">{name}</text>')
            before = model
        label = f"{row.cell.row}, {row.cell.column}"
        label = escape(label if len(label) <= LETTERS else f"{label[: LETTERS - 1]}…")
        parts.append(f'<text x="{LEFT - 8}" y="{y + 10:.0f}" text-anchor="end">{label}</text>')
        for number, metric in enumerate(metrics):
            figure = row.figures.get(metric)
            if figure is not None:
                parts += _marks(figure, LEFT + number * (panel + GAP), panel, y + 6, label)
        y += ROW
    parts.append(
        f'<text class="small" x="4" y="{height - 8}">bar: where one more run like the published '
        "ones lies 95 % of the time; filled: ours, blue where it agrees; hollow: archived</text>"
    )
    return "\n".join([*parts, "</svg>"])


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
