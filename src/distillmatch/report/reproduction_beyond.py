"""Figures beyond two published deviations, and what other readings of the paper make of each."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from distillmatch.report.paper_reasons import (
    STATES,
    Given,
    by_reason,
    counted_states,
    states_in_words,
)
from distillmatch.report.paper_tables import (
    METRICS,
    Entry,
    Paper,
    Reproduced,
    config_key,
    shown_here,
    shown_published,
)
from distillmatch.report.paper_text import RELEASE, markdown_row, unbroken
from distillmatch.suite.catalogue import Cell

Answer = Literal["within", "nearer", "no nearer", "not yet run"]
ANSWERS: dict[Answer, str] = {
    "within": "within them",
    "nearer": "nearer, but still beyond them",
    "no nearer": "no nearer",
    "not yet run": "not yet run",
}
"""How a figure stands with the readings of the authors' release, or one reading, in words."""
BY_READING = "that reading"
"""The head of the column of runs that have the reading which a reason names."""


@dataclass(frozen=True)
class Beyond:
    """A figure that differs by more than two published deviations, and the same by the release."""

    experiment: str
    cell: Cell
    entry: Entry
    by_release: Entry | None

    @property
    def place(self) -> str:
        """Where the paper prints it."""
        return f"{self.experiment}, {self.cell.name}"

    @property
    def by_reading(self) -> Entry | None:
        """The same with the reading that its reason names."""
        return None if self.entry.why is None else self.entry.why.by_reading

    @property
    def answer(self) -> Answer:
        """How the release's readings change it."""
        return self._changed_by(self.by_release)

    @property
    def answer_by_reading(self) -> Answer:
        """How the reading that its reason names changes it."""
        return self._changed_by(self.by_reading)

    def _changed_by(self, other: Entry | None) -> Answer:
        if other is None or not other.values:
            return "not yet run"
        if other.verdict == "within":
            return "within"
        ours, theirs = abs(self.entry.difference or 0.0), abs(other.difference or 0.0)
        return "nearer" if theirs < ours else "no nearer"


def beyond_part(paper: Paper) -> str:
    """Return how many such figures there are, their reasons where known, and a table of all."""
    found = list(figures_beyond(paper))
    lead = f"Figures beyond two published deviations: {_share(paper.of_paper)} with our readings"
    if any(one.cells_run for one in paper.by_release):
        lead += f", {_share(paper.by_release)} with the release’s"
    if not found:
        return f"{lead}."
    heads = ["cell", "metric", "published", "here", RELEASE, ""]
    kinds = "|---|---|---:|---:|---:|---|"
    rows, known = [_row(one) for one in found], []
    given = [one.entry.why for one in found]
    if any(given):
        named = [one for one in found if one.entry.why and one.entry.why.reason.reading]
        known = ["", *_reason_lines(given)]
        if named:
            counts = _counted(one.answer_by_reading for one in named)
            known += ["", f"Of {len(named)} the reason names a reading; with it: {counts}."]
        heads, kinds = [*heads, "reason", BY_READING], f"{kinds}---|---:|"
        rows = [
            [*row, str(one.entry.why or "–"), unbroken(shown_here(one.by_reading, mark=True))]
            for row, one in zip(rows, found, strict=True)
        ]
    counts = _counted(one.answer for one in found)
    return "\n".join(
        [
            f"{lead}. Of the former {len(found)}, with the release’s: {counts}.",
            *known,
            "",
            "<details><summary>Each of them</summary>",
            "",
            markdown_row(heads),
            kinds,
            *map(markdown_row, rows),
            "",
            "</details>",
        ]
    )


def figures_beyond(paper: Paper) -> Iterator[Beyond]:
    """Find them in the paper's tables and figures; one that several of these print comes once."""
    seen = set()
    for one in paper.of_paper:
        beside = paper.beside(one)
        for record in one.records:
            other = beside.record(record.cell.row, record.cell.column) if beside else None
            for entry in record.entries:
                key = config_key(record.cell.config), entry.metric
                if entry.verdict in ("above", "below") and key not in seen:
                    seen.add(key)
                    by_release = other.entry(entry.metric) if other else None
                    yield Beyond(one.experiment.name, record.cell, entry, by_release)


def _counted(answers: Iterable[Answer]) -> str:
    given = list(answers)
    return ", ".join(f"{given.count(a)} {said}" for a, said in ANSWERS.items() if a in given)


def _share(reproduced: Iterable[Reproduced]) -> str:
    """Return how many of the figures that can be judged are beyond, each counted once."""
    verdicts = {
        (config_key(record.cell.config), entry.metric): entry.verdict
        for one in reproduced
        for record in one.records
        for entry in record.entries
        if entry.verdict in ("within", "above", "below")
    }
    beyond = sum(verdict != "within" for verdict in verdicts.values())
    return f"{beyond} of {len(verdicts)}"


def _reason_lines(given: Sequence[Given | None]) -> Iterator[str]:
    """Return how sure the reasons of some figures are, and a table of the reasons."""
    yield f"Their reasons: {states_in_words(given)}."
    yield ""
    yield markdown_row(["reason", *STATES, ""])
    yield "|---|" + "---:|" * len(STATES) + "---|"
    for reason, of in by_reason(given).items():
        figures = [str(count or "–") for count in counted_states(of).values()]
        yield markdown_row([f"[{reason.name}](#{reason.see})", *figures, reason.says])


def _row(one: Beyond) -> list[str]:
    figures = [
        shown_published(one.entry),
        *(shown_here(of, mark=True) for of in (one.entry, one.by_release)),
    ]
    words = one.place, METRICS[one.entry.metric]
    return [*words, *map(unbroken, figures), ANSWERS[one.answer]]
