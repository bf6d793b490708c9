"""Tables and figures of the report as HTML."""

import re
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

from distillmatch.report.comparison import (
    BOUNDS,
    SHOWN,
    Group,
    Result,
    code_shown,
    metric_of,
    stored_shown,
)
from distillmatch.report.paper_figures import Figure, method_name, stream_words
from distillmatch.report.paper_layout import Grid, Line, Placed
from distillmatch.report.paper_reasons import STATES, Given, by_reason, counted_states
from distillmatch.report.paper_streams import StreamPicture
from distillmatch.report.paper_tables import (
    METRICS,
    VERDICTS,
    Entry,
    Reproduced,
    Verdict,
    shown,
    shown_difference,
    shown_here,
    shown_published,
)
from distillmatch.suite.identity import run_name
from distillmatch.suite.ledger import config_of

WORDS: dict[Verdict, str] = {
    "within": "within",
    "above": "beyond",
    "below": "beyond",
    "unjudged": "not judged",
    "open": "not yet run",
}


def metric_html(metric: str) -> str:
    """Return a metric's name with its index set as one."""
    return "A<sub>N</sub>" if metric == "A_N" else escape(METRICS.get(metric, metric))


def with_indices(text: str) -> str:
    """Return text in which what follows an underscore is set as an index."""
    return re.sub(r"_(\w+)", r"<sub>\1</sub>", escape(text))


def grid_html(grid: Grid, seeds: int) -> str:
    """Return one table of an experiment: published beside reproduced in every cell."""
    several = len(grid.groups) > 1
    span = len(grid.metrics)
    top = "".join(f'<th colspan="{span}" scope="colgroup">{escape(g)}</th>' for g in grid.groups)
    names = [metric for _ in grid.groups for metric in grid.metrics]
    heads = [
        sort_head(metric_html(metric), number + 1, f"{METRICS[metric]} {group}".strip())
        for number, (metric, group) in enumerate(
            zip(names, [g for g in grid.groups for _ in grid.metrics], strict=True)
        )
    ]
    methods = [line.method for line in grid.lines]
    rows = "Method" if len(set(methods)) == len(methods) else "Variant"
    first = sort_head(rows, 0, "the row", rows=2 if several else 1)
    head = (
        f"<tr>{first}{top}</tr><tr>{''.join(heads)}</tr>"
        if several
        else f"<tr>{first}{''.join(heads)}</tr>"
    )
    body = "\n".join(_line_html(line, seeds) for line in grid.lines)
    return table_html(escape(grid.caption), head, body)


def grids_html(grids: Sequence[Grid], figures: Sequence[Figure], seeds: int) -> str:
    """Return the tables of an experiment, each with its figure beside it, or several below."""
    parts = []
    for grid in grids:
        own = [f for f in figures if len(grids) == 1 or f.place in grid.groups]
        kind = "pair many" if len(own) > 1 else "pair"
        parts.append(f'<div class="{kind}">{grid_html(grid, seeds)}{figures_html(own)}</div>')
    return "".join(parts)


def table_html(caption: str, head: str, body: str) -> str:
    """Return a table that scrolls within its own frame where the page is narrow."""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{caption}"><table>'
        f"<caption>{caption}</caption><thead>{head}</thead>\n<tbody>{body}</tbody></table></div>"
    )


def sort_head(label: str, column: int, said: str, rows: int = 1, kind: str = "") -> str:
    """Return a column's head that sorts its table, by pointer and by keyboard."""
    return (
        f'<th scope="col" class="{kind}" rowspan="{rows}" aria-sort="none"><button type="button" '
        f'data-sort="{column}" title="sort by {escape(said)}">{label}'
        f'<span class="arrow" aria-hidden="true"></span></button></th>'
    )


def _line_html(line: Line, seeds: int) -> str:
    cells = "".join(
        '<td class="none" data-value=""></td>' if placed is None else _cell_html(placed, seeds)
        for placed in line.figures
    )
    return (
        f'<tr data-method="{escape(line.method)}"><th scope="row" '
        f'data-value="{escape(line.label)}">{with_indices(line.label)}</th>{cells}</tr>'
    )


def _cell_html(placed: Placed, seeds: int) -> str:
    record, entry = placed.record, placed.entry
    beside = ""
    if entry.why is not None and entry.why.by_reading is not None:
        title = "with the reading that the reason names"
        beside += _beside_html(entry.why.by_reading, entry.why.reason.name, title)
    if placed.by_release is not None:
        title = "with the readings of the authors’ release"
        beside += _beside_html(placed.by_release, "release", title)
    published = ""
    if entry.published is not None:
        published = f'<span class="paper">paper {shown_published(entry)}</span>'
    if not entry.values:
        word = "not yet run"
        if record.results or not entry.measured:
            word = "no bound yet" if entry.metric == "omega" else "not measured"
        mark = VERDICTS[entry.verdict][0]
        return (
            f'<td class="open" data-value=""><span class="verdict open">'
            f'<span aria-hidden="true">{mark}</span> {word}</span>{published}{beside}</td>'
        )
    count = len(entry.values)
    told = f"{count} of {seeds} seeds" if count < seeds else f"{count} seeds"
    told = "1 seed" if count == seeds == 1 else told
    mean = entry.mean or 0.0
    return (
        f'<td data-value="{mean:.4f}"><span class="here">'
        f"{shown_here(entry)}</span>{published}{_verdict_html(entry)}"
        f'<span class="seeds">{told}</span>{beside}</td>'
    )


def _beside_html(entry: Entry, word: str, title: str) -> str:
    """Return what a cell says of the same run with other readings."""
    mark, meaning = VERDICTS[entry.verdict]
    count = len(entry.values)
    seeds = f", {count} seeds" if count > 1 else ""
    return (
        f'<span class="beside" title="{title}">{escape(word)} {shown_here(entry)} '
        f'<span class="{entry.verdict}" role="img" aria-label="{meaning}">{mark}</span>'
        f"{seeds}</span>"
    )


def _verdict_html(entry: Entry) -> str:
    if entry.published is None:
        return ""
    mark, meaning = VERDICTS[entry.verdict]
    return (
        f'<span class="verdict {entry.verdict}" title="{meaning}"><span aria-hidden="true">{mark}'
        f"</span> {shown_difference(entry)} {WORDS[entry.verdict]}</span>{_why_html(entry)}"
    )


def _why_html(entry: Entry) -> str:
    if entry.why is None:
        return ""
    says = escape(entry.why.reason.says)
    return f'<span class="why" title="{says}">{escape(str(entry.why))}</span>'


def reasons_html(given: Sequence[Given | None]) -> str:
    """Return a table of the reasons why figures differ, with how many figures each has."""
    head = _heads(["Reason", *STATES, "What is known"])
    lines = []
    for reason, of in by_reason(given).items():
        counts = "".join(
            f'<td data-value="{count}">{count or "–"}</td>' for count in counted_states(of).values()
        )
        name, says = escape(reason.name), with_indices(reason.says)
        lines.append(
            f'<tr><th scope="row" data-value="{name}">{name}</th>{counts}'
            f'<td class="text" data-value="{escape(reason.says)}">{says}</td></tr>'
        )
    return table_html("Figures by reason", head, "\n".join(lines))


def overview_html(reproduced: Sequence[Reproduced]) -> str:
    """Return what is done of each table and figure; without published figures, cells alone."""
    compared = any(one.entries for one in reproduced)
    names = ["Table or figure", "Cells run"]
    names += ["● within", "▲▼ beyond", "◇ not judged", "○ open"] if compared else ["○ not yet run"]
    head = "".join(sort_head(name, place, name) for place, name in enumerate(names))
    lines = []
    for place, one in enumerate(reproduced):
        run, whole = one.cells_run, len(one.records)
        shown_counts = one.counts if compared else (whole - run,)
        cells = "".join(f'<td data-value="{count}">{count or "–"}</td>' for count in shown_counts)
        lines.append(
            f'<tr><th scope="row" data-value="{place}">'
            f'<a href="#{escape(one.experiment.name)}">{escape(one.experiment.name)}</a></th>'
            f'<td data-value="{run / max(whole, 1):.3f}">{run} of {whole}</td>{cells}</tr>'
        )
    said = "State of each table and figure, in " + ("published figures" if compared else "cells")
    return table_html(said, f"<tr>{head}</tr>", "\n".join(lines))


def others_html(groups: Sequence[Group]) -> str:
    """Return the runs that belong to no experiment, the seeds of each configuration together."""
    head = _heads(["Runs", "Stream", "Seeds", *(metric_html(metric) for metric in SHOWN)])
    lines = []
    for group in groups:
        cells = []
        for metric in SHOWN:
            values = [metric_of(result, metric) for result in group.results]
            entry = Entry(metric, None, tuple(v for v in values if v is not None))
            value = "" if entry.mean is None else f"{entry.mean:.4f}"
            cells.append(f'<td data-value="{value}">{shown(entry.mean, entry.deviation)}</td>')
        stream, count = escape(stream_words(group.results[0])), len(group.results)
        lines.append(
            f'<tr data-method="{escape(group.method)}"><th scope="row" '
            f'data-value="{escape(group.name)}">{escape(group.name)}</th>'
            f'<td class="text" data-value="{stream}">{stream}</td>'
            f'<td data-value="{count}">{count}</td>{"".join(cells)}</tr>'
        )
    return table_html(
        "Mean ± deviation over seeds, in percent", f"<tr>{head}</tr>", "\n".join(lines)
    )


def runs_html(results: Sequence[Result]) -> str:
    """Return time, memory, machine and commit of each run."""
    names = ["Run", "Seed", "A<sub>N</sub>", "Time", "GPU memory", "Stored", "Machine", "Commit"]
    head = _heads(names)
    body = "\n".join(_run_html(result) for result in results)
    return table_html("Every run that this report was made from", f"<tr>{head}</tr>", body)


def _heads(names: Sequence[str]) -> str:
    texts = ("Stream", "Machine", "Commit")
    return "".join(
        sort_head(name, place, "this column", kind="text" if name in texts else "")
        for place, name in enumerate(names)
    )


def _run_html(result: Result) -> str:
    name = run_name(config_of(result, Path("result")))
    if not result["complete"]:
        name += f" (unfinished: {len(result['tasks'])} of {len(result['task_sizes'])} tasks)"
    seconds, peak = result["seconds"]["total"], result["memory"]["peak_device_bytes"]
    machine = f"{result['machine']['device']}, {result['machine']['precision']}"
    commit = code_shown(result)
    stored = result["memory"]["stored_images"]
    accuracy = result["metrics"]["A_N"]
    gib = "–" if peak is None else f"{peak / 2**30:.1f} GiB"
    cells = [
        (str(result["seed"]), str(result["seed"]), ""),
        (f"{accuracy:.4f}", f"{accuracy:.1f}", ""),
        (f"{seconds:.1f}", _duration(seconds), ""),
        ("" if peak is None else str(peak), gib, ""),
        ("" if result["method"] in BOUNDS else str(stored), stored_shown(result), ""),
        (escape(machine), escape(machine), "text"),
        (escape(commit), escape(commit), "text"),
    ]
    made = "".join(
        f'<td class="{kind}" data-value="{key}">{text}</td>' for key, text, kind in cells
    )
    return (
        f'<tr data-method="{escape(result["method"])}"><th scope="row" class="run" '
        f'data-value="{escape(name)}">{escape(name)}</th>{made}</tr>'
    )


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
    )


def figure_html(figure: Figure) -> str:
    """Return a figure with the button that saves it."""
    name = "".join(c if c.isalnum() else "-" for c in figure.name)
    method = f' data-method="{escape(figure.method)}"' if figure.method else ""
    return (
        f'<figure id="{name}"{method}>{figure.drawing}<figcaption>'
        f'<button type="button" class="save" data-save="{name}">Save as SVG</button>'
        f"{escape(figure.caption)}"
        "</figcaption></figure>"
    )


def folded_figures_html(figures: Sequence[Figure]) -> str:
    """Return figures folded away by the stream they are of, the first lot open."""
    lots: dict[str, list[Figure]] = {}
    for figure in figures:
        lots.setdefault(figure.place, []).append(figure)
    return "".join(
        f"<details{'' if number else ' open'}><summary>{escape(place)}: "
        f"{len(lot)} figure{'s' if len(lot) > 1 else ''}</summary>{figures_html(lot)}</details>"
        for number, (place, lot) in enumerate(lots.items())
    )


def figures_html(figures: Sequence[Figure]) -> str:
    """Return figures side by side, as many as fit."""
    if not figures:
        return ""
    return f'<div class="figures">{"".join(map(figure_html, figures))}</div>'


def streams_html(pictures: Sequence[StreamPicture]) -> str:
    """Return the pictures of streams, and a sentence for each reason why others have none."""
    drawn = [one for one in pictures if one.picture is not None]
    parts = [_stream_html(one, place + 1) for place, one in enumerate(drawn)]
    for reason in dict.fromkeys(one.reason for one in pictures if one.picture is None):
        titles = "; ".join(escape(one.title) for one in pictures if one.reason == reason)
        parts.append(f'<p class="left-out">Not drawn, {escape(reason)}: {titles}.</p>')
    return "\n".join(parts)


def _stream_html(picture: StreamPicture, number: int) -> str:
    title = escape(picture.title)
    data = "data:image/png;base64," + b64encode(picture.picture or b"").decode()
    return (
        f'<figure class="picture" id="stream-{number}"><div class="scroll" tabindex="0" '
        f'role="region" aria-label="{title}"><img src="{data}" alt="Example images of each task: '
        f'{title}"></div><figcaption><button type="button" class="save" '
        f'data-save="stream-{number}">Save as PNG</button>{title}.</figcaption></figure>'
    )


def method_switch(method: str, drawing: str) -> str:
    """Return the box that shows or hides a method everywhere."""
    return (
        f'<label><input type="checkbox" checked data-switch="{escape(method)}">{drawing} '
        f"{escape(method_name(method))}</label>"
    )
