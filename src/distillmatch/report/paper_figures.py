"""The figures of a report: which there are, from the tables' runs, each as SVG with its words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from distillmatch.metrics import mean_and_deviation
from distillmatch.report.comparison import BOUNDS, NAMES, Group, Result, metric_of
from distillmatch.report.paper_memory import MEMORY, base_budget
from distillmatch.report.paper_svg import (
    LEGEND_LETTERS,
    LINE_HEIGHT,
    WIDTH,
    Axes,
    Look,
    Series,
    heading,
    legend,
    line_figure,
    looks,
    marker,
    padded,
    shortened,
    svg,
    ticks,
    words,
)
from distillmatch.report.paper_tables import Paper, Record, Reproduced, shown_here

# Points of the colour map cividis, which reads the same for colour-blind eyes and in print.
HEAT = (
    (0, 34, 78),
    (53, 69, 108),
    (102, 105, 112),
    (148, 142, 119),
    (200, 184, 102),
    (254, 232, 56),
)
QUALITY = {
    "accepted": ("accepted", "of all shown", "gd"),
    "accepted_past": ("truly past", "of the accepted", "e2e"),
    "pseudo_labels_right": ("label right", "of the accepted", "dm"),
}


@dataclass(frozen=True)
class Figure:
    """One figure: its drawing, the sentence below it, and its method if it is of one alone.

    Its place is the column of a table, or the stream, that it belongs to.
    """

    name: str
    drawing: str
    caption: str
    method: str | None = None
    place: str = ""


def stream_words(result: Result) -> str:
    """Return the stream of a run in a few words."""
    config = result["config"]
    said = _tasks_words(result)
    if result["method"] != "offline":
        said += f", {config['unlabeled']} unlabelled"
    return said + (f", coreset {config['coreset']}" if config["coreset"] else "")


def experiment_figures(paper: Paper) -> dict[str, list[Figure]]:
    """Return the figures of each experiment, column by column."""
    found = {}
    for one in paper.reproduced:
        figures = []
        for column in one.experiment.columns:
            records = [r for r in one.records if r.cell.column == column and r.results]
            figures += _curves(one, column, records)
        budget = _memory_figure(one)
        found[one.experiment.name] = ([budget] if budget else []) + figures
    return found


def _curves(one: Reproduced, column: str, records: Sequence[Record]) -> list[Figure]:
    figures = []
    name = one.experiment.name
    place = f"{name}, {column}" if len(one.experiment.columns) > 1 else name
    groups = [record.group for record in records]
    if "omega" in one.experiment.metrics and "equivalent_coreset" not in one.experiment.metrics:
        # The bound's own curve is 100 everywhere.
        learners = [group for group in groups if group.method not in BOUNDS]
        lines = _series(learners, lambda result: result["metrics"].get("omega_curve"))
        if any(len(line.points) > 1 for line in lines):
            figures.append(
                Figure(
                    f"omega-{name}-{column}",
                    line_figure("Ω over tasks", place, "tasks learned", "Ω, %", lines),
                    "Ω up to each task, mean over seeds; the band is their range.",
                    place=column,
                )
            )
    if "auroc" in one.experiment.metrics:
        figures += auroc_figures(groups, f"auroc-{name}-{column}", place, column)
    return figures


def accuracy_figures(groups: Sequence[Group]) -> list[Figure]:
    """Return accuracy over tasks, a figure for each stream."""
    by_stream: dict[str, list[Group]] = {}
    for group in groups:
        if len(group.results[0]["metrics"]["accuracies"]) > 1:
            by_stream.setdefault(_tasks_words(group.results[0]), []).append(group)
    figures = []
    for number, (place, members) in enumerate(by_stream.items()):
        lines = _series(members, lambda result: result["metrics"]["accuracies"])
        drawing = line_figure("Accuracy over all classes seen", place, "tasks learned", "%", lines)
        figures.append(Figure(f"accuracy-{number + 1}", drawing, "", place=place))
    return figures


def auroc_figures(groups: Sequence[Group], name: str, words: str, place: str = "") -> list[Figure]:
    """Return the AUROC of the detector over tasks, if a run has one."""
    lines = _series(groups, lambda result: [t["detector"]["auroc"] for t in result["tasks"]])
    if not lines:
        return []
    drawing = line_figure("AUROC over tasks", words, "tasks learned", "AUROC, %", lines)
    return [
        Figure(
            name,
            drawing,
            "How well the detector that a task leaves tells seen from unseen classes. 50: chance.",
            place=place,
        )
    ]


def quality_figures(groups: Sequence[tuple[Group, str]]) -> list[Figure]:
    """Return the quality of pseudo-labels over tasks, a figure for each method with a gate."""
    figures = []
    for number, (group, place) in enumerate(groups):
        lines = []
        for key, (word, share, look) in QUALITY.items():
            part = _series([group], lambda r, k=key: [t["detector"][k] for t in r["tasks"]])  # type: ignore[misc]
            lines += [Series(f"{word}, {share}", p.method, p.points, p.spread, look) for p in part]
        if lines:
            drawing = line_figure(
                f"Pseudo-labels: {group.name}", place, "task", "%", lines, (0, 100)
            )
            figures.append(Figure(f"quality-{number + 1}", drawing, "", group.method, place))
    return figures


def matrix_figures(groups: Sequence[tuple[Group, str]]) -> list[Figure]:
    """Return the accuracy matrices R as heat maps, mean over seeds."""
    figures = []
    for number, (group, place) in enumerate(groups):
        count = min(len(result["R"]) for result in group.results)
        if count > 1:
            drawing = _heat_map(group, place, count)
            lot = _tasks_words(group.results[0])
            figures.append(Figure(f"matrix-{number + 1}", drawing, "", group.method, lot))
    return figures


def groups_shown(paper: Paper) -> list[tuple[Group, str]]:
    """Return every configuration once, under the name of its first table's row, with its stream."""
    seen: set[int] = set()
    found = []
    for one in paper.reproduced:
        for record in one.records:
            if record.results and id(record.results[0]) not in seen:
                seen.add(id(record.results[0]))
                found.append((record.group, stream_words(record.results[0])))
    return found + [(group, stream_words(group.results[0])) for group in paper.others]


def _tasks_words(result: Result) -> str:
    """Return what all streams of the same tasks have in common, the bound's too, in words."""
    tasks = len(result["task_sizes"])
    said = f"{tasks} task{'s' if tasks > 1 else ''}"
    return f"{result['config']['source']}, {said}, {result['config']['order']} order"


def _series(
    groups: Sequence[Group], values: Callable[[Result], Sequence[float | None] | None]
) -> list[Series]:
    """Return a line for each group: mean, lowest and highest of the seeds that have a value."""
    lines = []
    for group in groups:
        runs = [found for result in group.results if (found := values(result)) is not None]
        points, spread = [], []
        for place in range(max(map(len, runs), default=0)):
            known = [run[place] for run in runs if place < len(run)]
            figures = [value for value in known if value is not None]
            if figures:
                points.append((place + 1.0, mean_and_deviation(figures)[0]))
                spread.append((min(figures), max(figures)))
        if points:
            lines.append(Series(group.name, group.method, points, spread))
    return lines


def _memory_figure(one: Reproduced) -> Figure | None:
    """Return Base's Ω over coreset sizes, and what other methods' Ω is worth in stored images."""
    budget = base_budget(one.records)
    if "equivalent_coreset" not in one.experiment.metrics or len(budget) < 2:
        return None
    levels = []
    for record in one.records:
        omegas = [v for r in record.results if (v := metric_of(r, "omega")) is not None]
        if record.method != "base" and omegas:
            levels.append((record, mean_and_deviation(omegas)[0]))
    ys = [y for _, y in budget] + [y for _, y in levels]
    sizes = [float(size) for size, _ in budget]
    axes = Axes((0, max(sizes)), padded(min(ys), max(ys)))
    parts = [heading("Ω over the images that Base may store", one.experiment.name)]
    parts.append(axes.drawn("stored images", "Ω, %", ticks(0, max(sizes), 6)))
    given = looks(["base", *(record.method for record, _ in levels)])
    names = ["Base", *(_level_words(record) for record, _ in levels)]
    methods = ["base", *(record.method for record, _ in levels)]
    placed, height = legend(list(zip(methods, names, given, strict=True)), axes.bottom + 46)
    path = "L".join(f"{axes.x(size):.1f} {axes.y(y):.1f}" for size, y in budget)
    marks = "".join(
        marker(axes.x(size), axes.y(y), given[0].marker, f"Base, {size} stored: {y:.1f}")
        for size, y in budget
    )
    drawn = [f'<path class="line" d="M{path}"/>{marks}']
    drawn += [
        _level(axes, record, y, look) for (record, y), look in zip(levels, given[1:], strict=True)
    ]
    for method, look, line, entry in zip(methods, given, drawn, placed, strict=True):
        parts.append(f'<g data-method="{escape(method)}" class="{look.color}">{line}{entry}</g>')
    bottom = axes.bottom + 46 + height
    return Figure(
        f"memory-{one.experiment.name}",
        svg(
            "".join(parts), bottom, "Ω of Base over stored images, with the levels of other methods"
        ),
        "Where a method's level meets Base's line, its unlabelled images are worth so many stored "
        "ones. Lines between measured sizes are straight.",
    )


def _level_words(record: Record) -> str:
    """Return a method and what it is worth, of several seeds the mean; a long name is cut."""
    name = record.cell.row
    stored, saved = (record.entry(metric) for metric in MEMORY)
    worth = "not measured"
    if stored is not None and stored.mean is not None:
        worth = f"{shown_here(stored) if stored.at_least else f'{stored.mean:.0f}'} stored"
        if saved is not None and saved.mean is not None and not saved.at_least:
            whole = f"{name}: {worth}, {saved.mean:.2f} per image"
            if len(whole) <= LEGEND_LETTERS:
                return whole
    return f"{shortened(name, LEGEND_LETTERS - len(worth) - 2)}: {worth}"


def _level(axes: Axes, record: Record, y: float, look: Look) -> str:
    stored = record.entry("equivalent_coreset")
    level = axes.y(y)
    drawn = f'<path class="line" stroke-dasharray="6 4" d="M{axes.left} {level:.1f}H{axes.right}"/>'
    if stored is not None and stored.mean is not None and not stored.at_least:
        x = axes.x(stored.mean)
        said = f"{record.cell.row}: Ω {y:.1f}, {stored.mean:.0f} stored"
        drawn += (
            f'<path class="bar" stroke-dasharray="2 3" d="M{x:.1f} {level:.1f}V{axes.bottom}"/>'
            + marker(x, level, look.marker, said)
        )
    return drawn


def _heat_map(group: Group, place_words: str, count: int) -> str:
    """Draw R: a row for each task learned, a column for each task tested."""
    left, top = 34, 64
    side = (WIDTH - left - 14) / count
    parts = [heading(f"Accuracy matrix: {group.name}", place_words)]
    parts.append(words(12, 56, "tested on task →, after task ↓, %", "small"))
    step = max(1, round(count / 10))
    for place in range(count):
        middle = (place + 0.5) * side
        if place % step == 0 or count <= 10:
            parts.append(words(left - 6, top + middle + 4, str(place + 1), "small", "end"))
            parts.append(
                words(left + middle, top + count * side + 15, str(place + 1), "small", "middle")
            )
        for tested in range(place + 1):
            value = mean_and_deviation([result["R"][place][tested] for result in group.results])[0]
            x, y = left + tested * side, top + place * side
            said = f"<title>task {tested + 1} after task {place + 1}: {value:.1f}</title>"
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{side - 0.8:.1f}" '
                f'height="{side - 0.8:.1f}" fill="{heat(value)}">{said}</rect>'
            )
            if count <= 10:
                ink = "#fff" if value < 55 else "#111"
                parts.append(
                    f'<text x="{x + side / 2:.1f}" y="{y + side / 2 + 4:.1f}" '
                    f'style="fill:{ink};font-size:11px" text-anchor="middle" '
                    f'pointer-events="none">{value:.0f}</text>'
                )
    bottom = top + count * side + 26
    parts.append(_heat_legend(bottom))
    label = f"Accuracy matrix of {group.name}, {place_words}: accuracy on each task after each task"
    return svg("".join(parts), bottom + LINE_HEIGHT + 16, label)


def _heat_legend(top: float) -> str:
    width = 18
    boxes = "".join(
        f'<rect x="{88 + width * n}" y="{top}" width="{width}" height="12" '
        f'fill="{heat(10 * n + 5)}"/>'
        for n in range(10)
    )
    low = words(82, top + 10, "0, dark blue", "small", "end")
    return low + boxes + words(94 + 10 * width, top + 10, "100, yellow", "small")


def heat(value: float) -> str:
    """Return the colour of a percentage."""
    place = min(max(value, 0.0), 100.0) / 100 * (len(HEAT) - 1)
    first = min(int(place), len(HEAT) - 2)
    share = place - first
    mixed = [round(a + share * (b - a)) for a, b in zip(HEAT[first], HEAT[first + 1], strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)


def method_name(method: str) -> str:
    """Return a method's name as people write it."""
    return NAMES.get(method, method)
