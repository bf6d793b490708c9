"""Why figures differ from the published ones: what is known of each, in a file of the ledger."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from distillmatch.config import RunConfig, read_yaml
from distillmatch.config.base import Config
from distillmatch.errors import ConfigError
from distillmatch.report.paper_tables import (
    METRICS,
    Entry,
    Paper,
    Record,
    Reproduced,
    config_key,
    entry_of,
    runs_by_config,
)
from distillmatch.suite.catalogue import load_experiment

FILE = "reasons.yaml"
State = Literal["shown", "partly", "likely", "open"]
STATES: dict[State, str] = {
    "shown": "shown by runs",
    "partly": "shown by runs for a part of it",
    "likely": "likely, not yet shown",
    "open": "open",
}
"""How sure a reason is, the surest first."""


class Figures(Config):
    """Figures that a reason is given for; of what is not named, all are meant."""

    state: State
    experiments: tuple[str, ...]
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def mean(self, experiment: str, row: str, column: str, metric: str) -> bool:
        """Tell whether a figure is among them."""
        named = ((self.rows, row), (self.columns, column), (self.metrics, metric))
        return experiment in self.experiments and all(
            not names or name in names for names, name in named
        )


class _Written(Config):
    says: str
    see: str
    of: tuple[dict[str, Any], ...]
    reading: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Reason:
    """What is known of why some figures differ, in a sentence, and where more is said of it.

    `reading` are the options by which runs show whether it is so, if there are such: the cell's own
    run has what is usual for them.
    """

    name: str
    says: str
    see: str
    of: tuple[Figures, ...]
    reading: tuple[tuple[str, Any], ...] = ()

    def taken_in(self, config: RunConfig) -> RunConfig | None:
        """Return the configuration of the run that has this reading, if the reason names one."""
        return config.replace(**dict(self.reading)) if self.reading else None


@dataclass(frozen=True)
class Given:
    """The reason of one figure, and how sure it is there.

    `by_reading` is the figure of runs with the reading that the reason names, if there are such.
    """

    reason: Reason
    state: State
    by_reading: Entry | None = None

    def __str__(self) -> str:
        return f"{self.reason.name}, {self.state}"


def read_reasons(path: Path) -> list[Reason]:
    """Read a file of reasons; what is wrong with it is said in one sentence."""
    read = read_yaml(path)
    if not isinstance(read, dict):
        raise ConfigError(f"{path}: expected reasons by their names")
    found = []
    for name, values in read.items():
        where = f"{path}: {name}"
        written = _Written.from_mapping(values, where)
        figures = tuple(Figures.from_mapping(one, where) for one in written.of)
        for one in figures:
            _refuse_unknown(one, where)
        reading = tuple(written.reading.items())
        says = " ".join(written.says.split())
        reason = Reason(str(name), says, written.see, figures, reading)
        try:
            reason.taken_in(RunConfig())
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        found.append(reason)
    return found


def reason_for(
    reasons: Iterable[Reason], experiment: str, row: str, column: str, metric: str
) -> Given | None:
    """Return the first reason that is given for a figure."""
    for reason in reasons:
        for figures in reason.of:
            if figures.mean(experiment, row, column, metric):
                return Given(reason, figures.state)
    return None


def with_reasons(paper: Paper, reasons: Sequence[Reason]) -> Paper:
    """Give each figure beyond two published deviations its reason, in every table that prints it.

    A figure is the same wherever it is printed, so that its reason may name any of these tables.
    """
    known: dict[tuple[str, str], Given] = {}
    runs = runs_by_config(paper.results)
    for one in paper.of_paper:
        for record in one.records:
            place = one.experiment.name, record.cell.row, record.cell.column
            for entry in record.entries:
                given = reason_for(reasons, *place, entry.metric)
                if given is not None:
                    known.setdefault((config_key(record.cell.config), entry.metric), given)

    def explained(record: Record) -> Record:
        key = config_key(record.cell.config)

        def with_reason(entry: Entry) -> Entry:
            why = known.get((key, entry.metric))
            if why is None or entry.verdict not in ("above", "below"):
                return entry
            config = why.reason.taken_in(record.cell.config)
            found = runs.get(config_key(config), ()) if config else ()
            other = entry_of(found, entry.metric, entry.published)
            return replace(entry, why=replace(why, by_reading=other if other.values else None))

        return replace(record, entries=tuple(map(with_reason, record.entries)))

    def with_explained(one: Reproduced) -> Reproduced:
        return replace(one, records=tuple(map(explained, one.records)))

    return replace(paper, reproduced=tuple(map(with_explained, paper.reproduced)))


def by_reason(given: Iterable[Given | None]) -> dict[Reason, list[Given]]:
    """Put those of one reason together, in the order of their first appearance."""
    found: dict[Reason, list[Given]] = {}
    for one in given:
        if one is not None:
            found.setdefault(one.reason, []).append(one)
    return found


def counted_states(given: Iterable[Given | None]) -> dict[State, int]:
    """Count how many are how sure."""
    states = [one.state for one in given if one is not None]
    return {state: states.count(state) for state in STATES}


def states_in_words(given: Sequence[Given | None]) -> str:
    """Return how many reasons are how sure, and how many figures have none."""
    counts = [f"{count} {STATES[state]}" for state, count in counted_states(given).items() if count]
    without = given.count(None)
    return ", ".join([*counts, f"{without} without any"] if without else counts)


def _refuse_unknown(figures: Figures, where: str) -> None:
    """Refuse names that no experiment has: a reason would be given for nothing."""
    try:
        known = [load_experiment(name) for name in figures.experiments]
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    for kind, names, there in (
        ("row", figures.rows, {row for one in known for row in one.rows}),
        ("column", figures.columns, {column for one in known for column in one.columns}),
        ("metric", figures.metrics, set(METRICS)),
    ):
        for name in names:
            if name not in there:
                raise ConfigError(
                    f"{where}: unknown {kind} '{name}'; expected one of {', '.join(sorted(there))}"
                )
