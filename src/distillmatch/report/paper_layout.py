"""How the cells of an experiment are laid out as tables, for the page and for LaTeX alike."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from distillmatch.report.paper_tables import Entry, Record, Reproduced
from distillmatch.suite.catalogue import Experiment

WIDEST = 6
"""Figures in a row of a table; what has more becomes one table for each column."""

HOW = "Mean ± standard deviation over seeds"


@dataclass(frozen=True)
class Placed:
    """A figure in its place: its cell, and the same one by the release's readings, if run."""

    record: Record
    entry: Entry
    by_release: Entry | None


@dataclass(frozen=True)
class Line:
    """One row of a table: a label, and its figures, some of which a table may leave out."""

    label: str
    method: str
    figures: tuple[Placed | None, ...]


@dataclass(frozen=True)
class Grid:
    """One table: columns in groups, each with the same metrics."""

    caption: str
    groups: tuple[str, ...]
    metrics: tuple[str, ...]
    lines: tuple[Line, ...]


def in_order(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Return the paper's experiments by number, tables before figures, then those beyond it."""

    def place(experiment: Experiment) -> tuple[bool, int, str, str]:
        found = re.search(r"(\d+)([a-z]?)", experiment.source)
        number, letter = (int(found[1]), found[2]) if found else (99, "")
        # A figure comes after all parts of the table with its number.
        part = "~" if experiment.kind == "figure" else letter
        return experiment.beyond_paper, number, part, experiment.name

    return sorted(experiments, key=place)


def grids(one: Reproduced, beside: Reproduced | None = None) -> list[Grid]:
    """Return the tables of an experiment, with the same by the release's readings beside it."""
    experiment, both = one.experiment, (one, beside)
    if len(experiment.columns) * len(experiment.metrics) <= WIDEST:
        groups = experiment.columns
        lines = tuple(_line(both, row, row, groups) for row in experiment.rows)
        return [Grid(HOW, groups, experiment.metrics, lines)]
    if len(one.records) < len(experiment.rows) * len(experiment.columns):
        lines = tuple(
            _line(both, _cell_label(r), r.cell.row, (r.cell.column,)) for r in one.records
        )
        return [Grid(HOW, ("",), experiment.metrics, lines)]
    return [
        Grid(
            column,
            (column,),
            experiment.metrics,
            tuple(_line(both, row, row, (column,)) for row in experiment.rows),
        )
        for column in experiment.columns
    ]


def _cell_label(record: Record) -> str:
    """Return row and column as one label; a bare number says little, unless it counts something."""
    column = record.cell.column
    stored = column == str(record.cell.config.coreset)
    return f"{record.cell.row}, {'coreset ' if stored else ''}{column}"


def _line(
    both: tuple[Reproduced, Reproduced | None], label: str, row: str, columns: Sequence[str]
) -> Line:
    one, beside = both
    figures: list[Placed | None] = []
    method = ""
    for column in columns:
        record = one.record(row, column)
        other = None if beside is None else beside.record(row, column)
        method = record.method if record else method
        for metric in one.experiment.metrics:
            entry = None if record is None else record.entry(metric)
            by_release = None if other is None else other.entry(metric)
            run = by_release if by_release is not None and by_release.values else None
            if record is None or entry is None:
                figures.append(None)
            else:
                figures.append(Placed(record, entry, run))
    return Line(label, method, tuple(figures))
