"""The page of the reproduction: its author's prose around parts that are made from a ledger."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from distillmatch.errors import explain_disk_errors
from distillmatch.files import write_atomically
from distillmatch.report.comparison import code_shown, metric_of
from distillmatch.report.paper_state import replaced_part
from distillmatch.report.paper_tables import (
    METRICS,
    VERDICTS,
    Paper,
    Record,
    Reproduced,
    decimals_of,
    shown,
    shown_difference,
    shown_here,
    shown_published,
)
from distillmatch.report.paper_text import RELEASE, markdown_row, unbroken
from distillmatch.report.reproduction_bars import Bar, bars, release_bars
from distillmatch.report.reproduction_beyond import beyond_part
from distillmatch.report.rerun import cell_line, experiment_line, run_line
from distillmatch.suite.identity import run_name
from distillmatch.suite.ledger import config_of

TEXTS = 2
"""Columns of a table that are text: the names of row and column."""
MADE = "made by distillmatch report --reproduction"


def page_with(text: str, paper: Paper, where: Path) -> str:
    """Return the page with each of its parts made anew; all else stays as it is."""
    for name, part in PARTS.items():
        marks = f"<!-- {name}: {MADE} -->", f"<!-- {name}: end -->"
        text = replaced_part(text, marks, part(paper), where)
    return text


def update_page(path: Path, paper: Paper) -> None:
    """Bring the parts of a page up to date."""
    with explain_disk_errors("reading it", path):
        text = path.read_text(encoding="utf-8")
    write_atomically(path, page_with(text, paper, path), "writing the reproduction")


def _bars_part(reached: Sequence[Bar]) -> str:
    lines = [markdown_row([bar.aim, bar.state, bar.figures]) for bar in reached]
    return "\n".join(["| to reach | state | figures |", "|---|---|---|", *lines])


def _tables_part(paper: Paper) -> str:
    """Return every experiment of which a cell was run."""
    return "\n\n".join(
        _section(one, paper.beside(one))
        for one in paper.reproduced
        if one.cells_run or paper.beside(one) is not None
    )


def _section(one: Reproduced, by_release: Reproduced | None) -> str:
    experiment = one.experiment
    table = _table_beyond(one) if experiment.beyond_paper else _table(one, by_release)
    note = f"{experiment.title}. {experiment.source}. {experiment.note}".strip()
    lines = [cell_line(one, record) for record in one.records]
    if by_release is not None:
        lines += [cell_line(by_release, r) for r in by_release.records if r.results]
    cells = "\n".join(lines)
    return "\n\n".join(
        [
            f"### {experiment.name}",
            note,
            "\n".join(table),
            "All cells again:",
            f"```sh\n{experiment_line(one)}\n```",
            "<details><summary>A line for each cell</summary>",
            f"```sh\n{cells}\n```",
            "</details>",
        ]
    )


def _table(one: Reproduced, by_release: Reproduced | None) -> Iterator[str]:
    """A line for each cell: the published figure of each metric, and what the runs gave."""
    metrics = one.experiment.metrics
    printed = [m for m in metrics if any(entry.metric == m for entry in one.entries)]
    heads = ["row", "column", "seeds"]
    for metric in metrics:
        name = METRICS[metric]
        heads += [f"{name} published", "here"] if metric in printed else [name]
        heads += [] if by_release is None else [RELEASE]
    yield from _head(heads)
    for number, record in enumerate(one.records):
        cells = _begin(record)
        beside = None if by_release is None else by_release.records[number]
        for metric in metrics:
            cells += [shown_published(record.entry(metric))] if metric in printed else []
            cells += [_here(of, metric) for of in (record, beside) if of is not None]
        yield _row(cells)


def _table_beyond(one: Reproduced) -> Iterator[str]:
    """A line for each cell: what the runs gave, and how far that is from the first row's."""
    experiment = one.experiment
    heads = [head for metric in experiment.metrics for head in (METRICS[metric], "Δ")]
    yield from _head(["row", "column", "seeds", *heads])
    for record in one.records:
        cells = _begin(record)
        first = one.record(experiment.rows[0], record.cell.column)
        for metric in experiment.metrics:
            cells += [shown_here(record.entry(metric)), _gain(record, first, metric)]
        yield _row(cells)
    yield ""
    yield f"Δ: difference from the row {experiment.rows[0]}, over the seeds that both have."
    for record in one.records:
        printed = [e for e in record.entries if e.published is not None]
        if printed:
            figures = ", ".join(f"{METRICS[e.metric]} {shown_published(e)}" for e in printed)
            yield f"Published for {record.cell.row}, {record.cell.column}: {figures}."


def _begin(record: Record) -> list[str]:
    """Return the cells that every line begins with."""
    runs = str(len(record.results)) if record.results else "not run"
    return [record.cell.row, record.cell.column, runs]


def _row(cells: list[str]) -> str:
    """Return a row whose figures stay on one line each, however narrow the table."""
    return markdown_row([*cells[:TEXTS], *map(unbroken, cells[TEXTS:])])


def _head(names: list[str]) -> list[str]:
    """Return the head of a table whose first columns are text, and the others figures."""
    kinds = ["---"] * TEXTS + ["---:"] * (len(names) - TEXTS)
    return [markdown_row(names), f"|{'|'.join(kinds)}|"]


def _here(record: Record, metric: str) -> str:
    """Return the figure of the runs, in brackets its difference from the published one, a mark."""
    entry = record.entry(metric)
    if entry is None or not entry.values:
        bound = record.results and entry is not None and entry.metric == "omega"
        return "no bound" if bound else "–"
    figure = shown_here(entry)
    if len(entry.values) < len(record.results):
        figure += f", {len(entry.values)} seed{'s' if len(entry.values) > 1 else ''}"
    if entry.published is None:
        return figure
    return f"{figure} ({shown_difference(entry)}) {VERDICTS[entry.verdict][0]}"


def _gain(record: Record, first: Record | None, metric: str) -> str:
    """Return how much more a row gave than the first one, over the seeds of both."""
    if first is None or first is record:
        return "–"
    ours, theirs = (
        {result["seed"]: metric_of(result, metric) for result in one.results}
        for one in (record, first)
    )
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    gains = [mine - other for mine, other in pairs if mine is not None and other is not None]
    if not gains:
        return "–"
    # Adding zero leaves no minus before a difference that is shown as zero.
    gain = round(fmean(gains), decimals_of(metric)) + 0.0
    return f"{gain:+.{decimals_of(metric)}f}".replace("-", "−")


def _runs_part(paper: Paper) -> str:
    """Return every run with its figures, and the lines that make them again."""
    rows, lines = [], []
    for result in paper.results:
        figures = [shown(metric_of(result, metric)) for metric in ("A_N", "omega", "fgt")]
        seconds = f"{result['seconds']['total']:.0f}"
        name = run_name(config_of(result, Path("result")))
        machine = f"{result['machine']['device']}, {result['machine']['precision']}"
        at_once = result["machine"].get("runs_at_once", 1)
        machine += f", {at_once} runs at once" if at_once > 1 else ""
        rows.append(markdown_row([name, *figures, seconds, machine, code_shown(result)]))
        lines.append(run_line(result))
    return "\n".join(
        [
            "| run | A_N | Ω | FGT | seconds | device | commit |",
            "|---|---:|---:|---:|---:|---|---|",
            *rows,
            "",
            "The same runs, a line each:",
            "",
            "```sh",
            *lines,
            "```",
        ]
    )


PARTS: dict[str, Callable[[Paper], str]] = {
    "bars": lambda paper: _bars_part(bars(paper)),
    "bars by the release": lambda paper: _bars_part(release_bars(paper)),
    "beyond": beyond_part,
    "tables": _tables_part,
    "runs": _runs_part,
}
"""The parts that a page must have, by the word in their marks."""
