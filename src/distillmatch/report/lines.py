"""The rows that every renderer of the report shows, in the order of the paper's tables."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from distillmatch.metrics import Verdict
from distillmatch.report.cells import Figure, Row, TableModel, published_shown, shown

MARKS: dict[Verdict | None, str] = {"agrees": "●", "higher": "▲", "lower": "▼", None: ""}
"""A shape for each verdict, so that nothing depends on color."""
LEGEND = (
    "● agrees with the published mean by Welch's t-test at 5 % (one seed: the t-interval of one "
    "more run), ▲ higher, ▼ lower; without a mark: not judged, for want of a published deviation. "
    "†: an archived run of the nearest preset, never judged."
)


@dataclass(frozen=True)
class Line:
    """One figure of one cell."""

    experiment: str
    row: str
    column: str
    recipe: str
    seeds: tuple[int, ...]
    rerun: str
    figure: Figure

    @property
    def mark(self) -> str:
        """The shape of the verdict."""
        return MARKS[self.figure.verdict]

    @property
    def text(self) -> str:
        """The figure as tables write it, with its mark."""
        return f"{shown(self.figure)} {self.mark}".strip()

    @property
    def published(self) -> str:
        """The published figure as tables write it."""
        return published_shown(self.figure)


def lines_of(models: Iterable[TableModel]) -> list[Line]:
    """Return all figures of some tables."""
    return [line for model in models for line in _lines(model)]


def _lines(model: TableModel) -> Iterator[Line]:
    for row in model.rows:
        cell = row.cell
        for figure in row.figures.values():
            yield Line(
                model.experiment.name,
                cell.row,
                cell.column,
                cell.config.recipe,
                tuple(row.results),
                rerun(model.experiment.name, cell.name, row.seeds, cell.config.recipe),
                figure,
            )


def rerun(experiment: str, cell: str, seeds: Sequence[int], recipe: str) -> str:
    """Return the command that runs a cell again."""
    words = f"distillmatch suite run {experiment} --cell '{cell}' --seeds "
    words += ",".join(map(str, seeds))
    return words if recipe == "paper" else f"{words} --recipe {recipe}"


@dataclass(frozen=True)
class Summary:
    """What some tables come to: each cell once, whatever tables share it."""

    cells: int
    run: int
    agree: int
    judged: int
    difference: dict[str, float]
    """The mean absolute difference by metric, of runs by today's recipes."""


def summary_of(models: Sequence[TableModel], metrics: Sequence[str] = ("A_N", "omega")) -> Summary:
    """Count the cells of some tables and the verdicts on some of their metrics."""
    rows: dict[str, Row] = {}
    for model in models:
        for row in model.rows:
            key = repr(sorted(row.cell.config.identity().items()))
            rows.setdefault(key, row)
    figures = [
        row.figures[metric] for row in rows.values() for metric in metrics if metric in row.figures
    ]
    verdicts = [figure.verdict for figure in figures if figure.verdict is not None]
    differences = {
        metric: [
            abs(figure.difference)
            for figure in figures
            if figure.metric == metric and figure.verdict is not None and figure.difference
        ]
        for metric in metrics
    }
    return Summary(
        cells=len(rows),
        run=sum(bool(row.results) for row in rows.values()),
        agree=verdicts.count("agrees"),
        judged=len(verdicts),
        difference={metric: fmean(values) for metric, values in differences.items() if values},
    )


def headline(models: Sequence[TableModel], recipe: str) -> str:
    """Return in a sentence what of the paper is reproduced by a recipe."""
    summary = summary_of(models)
    text = f"{summary.run} of {summary.cells} cells have a run by the recipe `{recipe}`"
    if summary.judged:
        text += f"; {summary.agree} of {summary.judged} figures of A_N and Ω agree"
    if summary.difference:
        names = {"A_N": "A_N", "omega": "Ω"}
        parts = [f"{value:.1f} points of {names[m]}" for m, value in summary.difference.items()]
        text += f", the mean absolute difference is {' and '.join(parts)}"
    return f"{text}."
