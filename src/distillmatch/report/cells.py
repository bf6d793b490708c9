"""The model of a table: published figures beside the ledger's, and whether they agree.

A cell whose recipe has no run yet shows the archived run that is nearest to it, marked as such, so
that nothing is lost between two versions. Archived figures are never judged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from distillmatch.config import RunConfig
from distillmatch.metrics import (
    Verdict,
    agreement,
    equivalent_coreset,
    mean_and_deviation,
    omega,
    stages_of,
)
from distillmatch.runs import read_result
from distillmatch.suite.catalogue import Cell, Experiment, Published
from distillmatch.suite.ledger import Ledger
from distillmatch.suite.names import BOUND, bound_config

Result = dict[str, Any]
METRICS = {
    "A_N": "A_N",
    "omega": "Ω",
    "bwt": "BWT",
    "fgt": "FGT",
    "auroc": "AUROC",
    "equivalent_coreset": "stored images",
    "memory_saving": "saved per image",
}
MEMORY = ("equivalent_coreset", "memory_saving")
DECIMALS = {"equivalent_coreset": 0, "memory_saving": 2}
NOT_OF_BOUNDS = ("bwt", "fgt")
"""A bound learns every stage from nothing: differences between stages say nothing about it."""
UNLABELED_PER_TASK = 4000
"""Unlabeled images of a task in figure 3, the only experiment with figures of memory."""
IS_NO_TARGET = ("base", "bwt")
"""Base's published BWT mixes one run without distillation with two that distill."""


@dataclass(frozen=True)
class Figure:
    """One metric of one cell: what was published, and the value of every seed that was run.

    `archived` is the preset of the archived runs that the values are of, if they are. With
    `at_least` a value lies beyond all that was measured, so that it is the least it can be.
    """

    metric: str
    published: Published | None
    values: tuple[float, ...] = ()
    archived: str | None = None
    at_least: bool = False
    is_target: bool = True

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return mean_and_deviation(self.values)[0] if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds, if there are several."""
        return mean_and_deviation(self.values)[1] if self.values and not self.at_least else None

    @cached_property
    def verdict(self) -> Verdict | None:
        """Whether it agrees with what was published; nothing where that cannot be judged."""
        published = self.published
        if published is None or published.deviation is None or not self.values:
            return None
        if self.archived or self.at_least or not self.is_target:
            return None
        return agreement(published.mean, published.deviation, self.values)


@dataclass(frozen=True)
class Run:
    """A result with the bound's accuracy after each of its tasks, if there is a bound.

    An archived one has the preset that it was made by.
    """

    seed: int
    result: Result
    bound: Sequence[float] | None
    preset: str | None = None

    def metric(self, name: str) -> float | None:
        """Return a figure by the name that experiments use."""
        metrics = self.result["metrics"]
        if name == "auroc":
            areas = _known(task["detector"]["auroc"] for task in self.result["tasks"])
            return fmean(areas) if areas else None
        if name == "omega":
            return None if self.bound is None else omega(metrics["accuracies"], self.bound)
        value: float | None = metrics.get(name)
        return None if self.result["method"] == BOUND and name in NOT_OF_BOUNDS else value


@dataclass(frozen=True)
class Row:
    """A cell of an experiment with its runs, or the archived ones that stand in for them."""

    cell: Cell
    runs: tuple[Run, ...]
    archived: tuple[Run, ...]
    figures: dict[str, Figure]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class TableModel:
    """An experiment with everything that was run of it: what every renderer shows."""

    experiment: Experiment
    rows: tuple[Row, ...]

    def row(self, name: str, column: str) -> Row | None:
        """Return the cell at a row and a column; a table may leave some out."""
        return next((r for r in self.rows if (r.cell.row, r.cell.column) == (name, column)), None)

    @property
    def is_compared(self) -> bool:
        """Whether any of its figures was published."""
        return any(row.cell.published for row in self.rows)

    @property
    def cells_run(self) -> int:
        """The number of cells with at least one run by today's recipes."""
        return sum(bool(row.runs) for row in self.rows)


class Results:
    """The ledger's results, each read once, with the bound of the same recipe and seed."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._found: dict[Path, Result | None] = {}
        self._read = cache(read_result)

    def find(self, config: RunConfig) -> Result | None:
        """Return the result of a run, if the ledger has it."""
        path = self.ledger.path_of(config)
        if path not in self._found:
            self._found[path] = self.ledger.find(config)
        return self._found[path]

    def runs(self, config: RunConfig, seeds: Iterable[int]) -> tuple[Run, ...]:
        """Return the runs of a cell with these seeds that the ledger has."""
        wanted = [config.replace(seed=seed) for seed in seeds]
        return tuple(
            Run(one.seed, result, self._bound(one, result["task_sizes"]))
            for one in wanted
            if (result := self.find(one)) is not None
        )

    def archived(self, config: RunConfig) -> tuple[Run, ...]:
        """Return the archived runs that are nearest to a cell, each with its nearest bound."""
        archive = self.ledger.archive
        bounds = {one.seed: self._read(one.path) for one in archive.nearest(bound_config(config))}
        runs = []
        for one in archive.nearest(config):
            result, bound = self._read(one.path), bounds.get(one.seed)
            offline = bound["metrics"]["accuracies"] if bound else []
            fits = len(offline) == len(result["metrics"]["accuracies"])
            runs.append(Run(one.seed, result, offline if fits else None, one.preset))
        return tuple(runs)

    def _bound(self, config: RunConfig, sizes: Sequence[int]) -> list[float] | None:
        """Return the bound's accuracy after each task of a run, if the bound was run.

        One of more tasks serves where its stages end where the tasks do.
        """
        bounds = [bound_config(config)]
        if config.order == "random" and config.task_sizes is None and not config.repetition:
            bounds += [bounds[0].replace(tasks=2 * len(sizes)), bounds[0].replace(tasks=20)]
        for result in filter(None, map(self.find, bounds)):
            stages = stages_of(result["metrics"]["accuracies"], result["task_sizes"], sizes)
            if stages is not None:
                return stages
        return None


def table_of(experiment: Experiment, results: Results, seeds: Iterable[int] = ()) -> TableModel:
    """Return an experiment with the ledger's runs of these seeds, or of its own."""
    wanted, rows = tuple(seeds) or experiment.seeds, []
    runs = {cell.name: results.runs(cell.config, wanted) for cell in experiment.cells}
    budget = _budget_of_base(experiment, runs) if {*MEMORY} & {*experiment.metrics} else []
    for cell in experiment.cells:
        own = runs[cell.name]
        archived = () if own else results.archived(cell.config)
        figures = {
            metric: _memory_figure(cell, metric, own, budget)
            if metric in MEMORY
            else _figure(cell, metric, own or archived)
            for metric in experiment.metrics
        }
        rows.append(Row(cell, own, archived, figures, wanted))
    return TableModel(experiment, tuple(rows))


def shown(figure: Figure) -> str:
    """Return a figure as tables write it: mean ± deviation, and a mark if a run is archived."""
    if figure.mean is None:
        return "–"
    text = number_shown(figure.mean, figure.deviation, DECIMALS.get(figure.metric, 1))
    text = f"> {text}" if figure.at_least else text
    return f"{text} †" if figure.archived else text


def published_shown(figure: Figure) -> str:
    """Return what was published for a figure."""
    if figure.published is None:
        return "–"
    published = figure.published
    return number_shown(published.mean, published.deviation, DECIMALS.get(figure.metric, 1))


def number_shown(mean: float, deviation: float | None, decimals: int = 1) -> str:
    """Return a number as tables write it, ± the deviation if there is one."""
    text = f"{mean:.{decimals}f}"
    if deviation is not None:
        text += f" ± {deviation:.{decimals}f}"
    return text.replace("-", "−")


def _figure(cell: Cell, metric: str, runs: Sequence[Run]) -> Figure:
    values = _known(run.metric(metric) for run in runs)
    preset = runs[0].preset if runs else None
    is_target = (cell.config.method, metric) != IS_NO_TARGET
    return Figure(metric, cell.published.get(metric), values, preset, is_target=is_target)


def _budget_of_base(
    experiment: Experiment, runs: dict[str, tuple[Run, ...]]
) -> list[tuple[int, float]]:
    """Return the Ω of Base at each coreset size that was run."""
    budget = []
    for cell in experiment.cells:
        omegas = _known(run.metric("omega") for run in runs[cell.name])
        if cell.config.method == "base" and omegas:
            budget.append((cell.config.coreset, fmean(omegas)))
    return sorted(budget)


def _memory_figure(
    cell: Cell, metric: str, runs: Sequence[Run], budget: list[tuple[int, float]]
) -> Figure:
    """Return the images that Base must store to reach as much as the runs.

    Where Base reaches less with every coreset that was measured, it is the largest one, and the
    figure only known to be larger. With a single size there is nothing to measure by.
    """
    values, at_least = [], False
    measurable = cell.config.method != "base" and len(budget) > 1
    for reached in _known(run.metric("omega") for run in runs if measurable):
        stored = equivalent_coreset(budget, reached)
        at_least |= stored is None
        images = float(budget[-1][0]) if stored is None else stored
        values.append(images / (UNLABELED_PER_TASK if metric == "memory_saving" else 1))
    return Figure(metric, cell.published.get(metric), tuple(values), at_least=at_least)


def _known(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None)
