"""Published against reproduced in one figure: on the line, the two agree."""

from html import escape

from distillmatch.report.comparison import NAMES
from distillmatch.report.paper_figures import Figure
from distillmatch.report.paper_svg import (
    PLOT_HEIGHT,
    STYLE,
    TOP,
    WIDTH,
    Axes,
    Look,
    heading,
    legend,
    looks,
    marker,
    svg,
    ticks,
    words,
)
from distillmatch.report.paper_tables import METRICS, VERDICTS, Entry, Paper, Record

MEANT = ("A_N", "omega")


def agreement_figures(paper: Paper) -> list[Figure]:
    """Return a figure for each main metric of which something was published and run."""
    figures = []
    for metric in MEANT:
        points = _points(paper, metric)
        if points:
            content, height = _panel(points, metric, _looks_of(paper))
            label = f"{METRICS[metric]}: reproduced against published"
            figures.append(
                Figure(
                    f"agreement-{metric}",
                    svg(content, height, label),
                    "On the diagonal both agree. Across: published, ± two deviations. Up: mean of "
                    "the runs here, ± one deviation over seeds where there are several.",
                )
            )
    return figures


def agreement_file(paper: Paper) -> str:
    """Return both panels side by side as a file of its own, for light and dark."""
    given = _looks_of(paper)
    left, height = _panel(_points(paper, "A_N"), "A_N", given)
    right, other = _panel(_points(paper, "omega"), "omega", given)
    content = f'{left}<g transform="translate({WIDTH} 0)">{right}</g>'
    label = "Reproduced against published accuracy and Ω; on the diagonal both agree"
    return svg(content, max(height, other), label, width=2 * WIDTH, style=STYLE) + "\n"


def _looks_of(paper: Paper) -> dict[str, Look]:
    methods = [method for method in paper.methods if method != "offline-unlabeled"]
    return dict(zip(methods, looks(methods), strict=True))


def _points(paper: Paper, metric: str) -> list[tuple[Record, Entry, str]]:
    """Return what was published and run, once for each configuration that several tables share."""
    seen: set[tuple[int, float]] = set()
    found = []
    for one in paper.reproduced:
        for record in one.records:
            for entry in record.entries:
                if entry.metric != metric or entry.published is None or not entry.values:
                    continue
                key = (id(record.results[0]), entry.published.mean)
                if key not in seen:
                    seen.add(key)
                    found.append((record, entry, one.experiment.name))
    return found


def _panel(
    points: list[tuple[Record, Entry, str]], metric: str, given: dict[str, Look]
) -> tuple[str, float]:
    values = [v for _, e, _ in points for v in (e.mean, e.published and e.published.mean) if v]
    highest = max(values, default=90.0)
    high = 100.0 if highest == 100 else 10.0 * (int(highest / 10) + 1)
    axes = Axes((0, high), (0, high), top=TOP)
    name = "A_N, accuracy after the last task" if metric == "A_N" else "Ω, share of the bound"
    parts = [heading(name, "published and run; on the dashed line both agree")]
    parts.append(axes.drawn("published, %", "here, %", ticks(0, high)))
    parts.append(
        f'<path class="axis" stroke-dasharray="4 4" d="M{axes.x(0):.1f} {axes.y(0):.1f}'
        f'L{axes.x(high):.1f} {axes.y(high):.1f}"/>'
    )
    if not points:
        parts.append(words(axes.left + 14, TOP + PLOT_HEIGHT / 5, "○ not yet run", "small"))
    methods = [method for method in given if any(r.method == method for r, _, _ in points)]
    shown_names = [(method, NAMES.get(method, method), given[method]) for method in methods]
    entries, height = legend(shown_names, axes.bottom + 46) if methods else ([], 8.0)
    for method, entry in zip(methods, entries, strict=True):
        look = given[method]
        marks = [_mark(axes, r, e, place, look) for r, e, place in points if r.method == method]
        parts.append(
            f'<g data-method="{escape(method)}" class="{look.color}">{"".join(marks)}{entry}</g>'
        )
    return "".join(parts), axes.bottom + 46 + height


def _mark(axes: Axes, record: Record, entry: Entry, place: str, look: Look) -> str:
    published, mean = entry.published, entry.mean
    assert published is not None and mean is not None
    low, high = axes.x_range
    wide = 2 * (published.deviation or 0)
    x, y = axes.x(published.mean), axes.y(mean)
    left, right = axes.x(max(low, published.mean - wide)), axes.x(min(high, published.mean + wide))
    bars = f'<path class="bar" d="M{left:.1f} {y:.1f}H{right:.1f}"/>' if wide else ""
    if entry.deviation:
        top, bottom = axes.y(min(high, mean + entry.deviation)), axes.y(mean - entry.deviation)
        bars += f'<path class="bar" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>'
    said = (
        f"{place}, {record.cell.row}, {record.cell.column}: published {published.mean:.1f}, here "
        f"{mean:.1f}, {VERDICTS[entry.verdict][1]}"
    )
    return bars + marker(x, y, look.marker, said)
