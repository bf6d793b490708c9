"""What the reproduction must reach, and whether the runs reach it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from distillmatch.report.comparison import BOUNDS, NAMES
from distillmatch.report.paper_state import MAIN_COLUMN, MAIN_TABLE
from distillmatch.report.paper_tables import (
    METRICS,
    Entry,
    Paper,
    Record,
    Reproduced,
    config_key,
    shown,
    shown_difference,
)
from distillmatch.suite.catalogue import Published

SEEDS = 3
LEAST = {"A_N": 36.5, "omega": 74.0}
"""What DM must reach in the main setting, on the mean of the seeds."""
NEAR = 2.0
"""Points by which A_N of those below may differ from what was published."""
BASELINES = ("base", "e2e", "dr", "offline")
OURS = "base"
"""What stands by our readings in every order: the release's, which distils, is not the paper's."""
LENT = "offline"
"""What our readings lend the release's in an order where it was not run so."""
RANKED = ("A_N", "omega")
MET, MET_SO_FAR, NOT_MET, NOT_RUN = "met", "met so far", "not met", "not yet run"
NARROWLY = "not met, by less than the paper’s deviations"


@dataclass(frozen=True)
class Bar:
    """One thing to reach: what it is, how it stands, and the figures that say so."""

    aim: str
    state: str
    figures: str


@dataclass(frozen=True)
class Swapped:
    """Two rows that stand otherwise here: the one that the paper has above, and the one below."""

    metric: str
    above: tuple[str, Published]
    below: tuple[str, Published]

    @property
    def apart(self) -> bool:
        """Whether the paper tells them apart: its means differ by more than both deviations."""
        (_, high), (_, low) = self.above, self.below
        return high.mean - low.mean > (high.deviation or 0.0) + (low.deviation or 0.0) + 1e-9

    def __str__(self) -> str:
        """Say which rows they are, with what the paper prints."""
        (first, high), (second, low) = self.above, self.below
        figures = f"{shown(high.mean, high.deviation)} > {shown(low.mean, low.deviation)}"
        return f"{METRICS[self.metric]} of {first} and {second} ({figures})"


@dataclass(frozen=True)
class Column:
    """A column of a table that compares methods: its name, and its cells.

    `lent` names the rows whose runs are those of other readings.
    """

    name: str
    records: tuple[Record, ...]
    lent: tuple[str, ...] = ()


def bars(paper: Paper) -> list[Bar]:
    """Return everything that was to be reached, as the runs have it."""
    columns = _columns(paper.of_paper)
    return [_main_bar(paper), *_orders(columns), *_all_nearness(columns)]


def release_bars(paper: Paper) -> list[Bar]:
    """Return what can be said of the order and of baselines with the release's readings.

    In an order Base is ours, and so is the bound where it was not run so.
    """
    columns = _columns(paper.by_release)
    ours = {column.name: column for column in _columns(paper.of_paper)}
    filled = [_filled_up(column, ours[column.name]) for column in columns if column.name in ours]
    return [*_orders(filled), *_all_nearness(columns)]


def _all_nearness(columns: Sequence[Column]) -> list[Bar]:
    return [_nearness(columns, method) for method in BASELINES]


def _main_bar(paper: Paper) -> Bar:
    """DM in the main setting: the mean of three seeds reaches both figures."""
    words = " and ".join(f"{METRICS[metric]} at least {least}" for metric, least in LEAST.items())
    aim = f"DM, {MAIN_TABLE}, {MAIN_COLUMN}: {words} on the mean of {SEEDS} seeds"
    one = next((one for one in paper.reproduced if one.experiment.name == MAIN_TABLE), None)
    record = one.record(NAMES["dm"], MAIN_COLUMN) if one else None
    entries = [e for e in record.entries if e.metric in LEAST and e.values] if record else []
    figures = ", ".join(
        f"{METRICS[entry.metric]} {shown(entry.mean, entry.deviation)}" for entry in entries
    )
    seeds = min((len(entry.values) for entry in entries), default=0)
    if len(entries) < len(LEAST) or seeds < SEEDS:
        return Bar(aim, NOT_RUN, f"{seeds} of {SEEDS} seeds" + (f": {figures}" if figures else ""))
    met = all((entry.mean or 0.0) >= LEAST[entry.metric] for entry in entries)
    return Bar(aim, MET if met else NOT_MET, f"{figures}, {seeds} seeds")


def _columns(tables: Sequence[Reproduced]) -> list[Column]:
    """Return each column that compares methods by A_N once; later tables print some again."""
    found: dict[frozenset[str], Column] = {}
    for one in tables:
        for column in one.experiment.columns:
            records = tuple(r for r in one.records if r.cell.column == column)
            learners = [r for r in records if r.method not in BOUNDS]
            compares = len({r.method for r in learners}) == len(learners) > 1
            if compares and "A_N" in one.experiment.metrics:
                key = frozenset(config_key(record.cell.config) for record in learners)
                found.setdefault(key, Column(f"{one.experiment.name}, {column}", records))
    return list(found.values())


def _filled_up(column: Column, ours: Column) -> Column:
    """Take Base from our readings, and the bound where it was not run by others.

    That is fair as both learn labelled images alone, by the paper's words and here.
    """
    if not any(record.results for record in column.records):
        return column
    run = {record.cell.row for record in column.records if record.results}
    lent = {
        r.cell.row: r
        for r in ours.records
        if r.results and (r.method == OURS or (r.method == LENT and r.cell.row not in run))
    }
    records = tuple(lent.get(record.cell.row, record) for record in column.records)
    return Column(column.name, records, tuple(lent))


def _orders(columns: Sequence[Column]) -> Iterator[Bar]:
    """Each column in which two methods were run: they stand as they were published."""
    aim = "the order of the methods as published"
    begun = [c for c in columns if sum(bool(r.results) for r in c.records) > 1]
    for column in begun:
        rankings = [_ranking(column.records, metric) for metric in RANKED]
        swapped = [pair for metric in RANKED for pair in _swapped(column.records, metric)]
        apart = [str(pair) for pair in swapped if pair.apart]
        close = [str(pair) for pair in swapped if not pair.apart]
        missing = [record.cell.row for record in column.records if not record.results]
        said = [ranking for ranking in rankings if ranking]
        if apart:
            said.append(f"otherwise in the paper: {', '.join(apart)}")
        if close:
            said.append(f"otherwise by less than its deviations: {', '.join(close)}")
        if column.lent:
            said.append(f"by our readings: {', '.join(column.lent)}")
        if missing:
            said.append(f"not yet run: {', '.join(missing)}")
        state = MET_SO_FAR if missing else MET
        if swapped:
            state = NOT_MET if apart else NARROWLY
        yield Bar(f"{column.name}: {aim}", state, "; ".join(said))
    if not begun:
        yield Bar(f"every column: {aim}", NOT_RUN, "")


def _compared(records: Sequence[Record], metric: str) -> list[tuple[str, Entry]]:
    """Return the rows of a column that have a figure both here and in the paper, best first."""
    found = [
        (record.cell.row, entry)
        for record in records
        for entry in record.entries
        if entry.metric == metric and entry.values and entry.published is not None
    ]
    return sorted(found, key=lambda pair: -(pair[1].mean or 0.0))


def _ranking(records: Sequence[Record], metric: str) -> str:
    compared = _compared(records, metric)
    words = " > ".join(f"{row} {shown(entry.mean)}" for row, entry in compared)
    return f"{METRICS[metric]}: {words}" if words else ""


def _swapped(records: Sequence[Record], metric: str) -> Iterator[Swapped]:
    """Name each pair of rows that the paper has the other way round; it has no order of equals."""
    for (above, high), (below, low) in combinations(_compared(records, metric), 2):
        assert high.published is not None and low.published is not None
        if high.published.mean < low.published.mean:
            yield Swapped(metric, (below, low.published), (above, high.published))


def _nearness(columns: Sequence[Column], method: str) -> Bar:
    """A baseline or the bound: A_N near the published one wherever it was run."""
    records: dict[str, tuple[str, Record]] = {}
    for column in columns:
        for record in column.records:
            if record.method == method:
                records.setdefault(config_key(record.cell.config), (column.name, record))
    figures, far = [], False
    for name, record in records.values():
        for _, entry in _compared([record], "A_N"):
            assert entry.published is not None
            far = far or abs(entry.difference or 0.0) > NEAR + 1e-9
            figures.append(
                f"{name}: {shown(entry.mean)}, published {shown(entry.published.mean)} "
                f"({shown_difference(entry)})"
            )
    aim = f"{NAMES[method]}: A_N within {NEAR:g} points of the published one"
    if not figures:
        return Bar(aim, NOT_RUN, f"0 of {len(records)} configurations")
    whole = len(figures) == len(records)
    figures.append(f"{len(figures)} of {len(records)} configurations run")
    return Bar(aim, NOT_MET if far else MET if whole else MET_SO_FAR, "; ".join(figures))
