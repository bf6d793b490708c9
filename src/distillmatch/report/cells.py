"""The model of a table: published figures beside the ledger's, and whether they agree.

A cell whose recipe has no run yet shows the archived run that is nearest to it, marked as such, so
that nothing is lost between two versions. Archived figures are never judged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from distillmatch.config import RunConfig
from distillmatch.metrics import (
    Verdict,
    agreement,
    equivalent_coreset,
    mean_and_deviation,
    memory_saving,
    omega,
)
from distillmatch.runs import read_result
from distillmatch.suite.catalogue import Cell, Experiment, Published
from distillmatch.suite.ledger import Archived, Ledger
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
DECIMALS = {"equivalent_coreset": 0, "memory_saving": 2}
NOT_OF_BOUNDS = ("bwt", "fgt")
"""A bound learns every stage from nothing: differences between stages say nothing about it."""
UNLABELED_PER_TASK = 4000
"""Unlabeled images of a task in figure 3, the only experiment with figures of memory."""
IS_NO_TARGET = ("base", "bwt")
"""Base's published BWT mixes one run without distillation with two that distill."""


@dataclass(frozen=True)
class Figure:
    """One metric of one cell: what was published, and the value of every seed that was run."""

    metric: str
    published: Published | None
    values: tuple[float, ...] = ()
    archived: str | None = None
    """The preset of the archived run that the values are of, if they are."""
    at_least: bool = False
    """Whether a value lies beyond all that was measured, so that it is the least it can be."""
    is_target: bool = True

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return mean_and_deviation(self.values)[0] if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds, if there are several."""
        return mean_and_deviation(self.values)[1] if self.values and not self.at_least else None

    @property
    def difference(self) -> float | None:
        """How much more the runs gave than was published."""
        if self.mean is None or self.published is None:
            return None
        return self.mean - self.published.mean

    @property
    def verdict(self) -> Verdict | None:
        """Whether it agrees with what was published; nothing where that cannot be judged."""
        published = self.published
        if published is None or published.deviation is None or not self.values:
            return None
        if self.archived or self.at_least or not self.is_target:
            return None
        return agreement(published.mean, published.deviation, self.values)


@dataclass(frozen=True)
class Row:
    """A cell of an experiment with its runs, by seed."""

    cell: Cell
    results: dict[int, Result]
    archived: list[Archived]
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
    def figures(self) -> list[Figure]:
        """All figures of the table."""
        return [figure for row in self.rows for figure in row.figures.values()]

    def count(self, *verdicts: Verdict | None) -> int:
        """Count the published figures with one of the verdicts."""
        published = [figure for figure in self.figures if figure.published is not None]
        return sum(figure.verdict in verdicts for figure in published if figure.values)

    @property
    def cells_run(self) -> int:
        """The number of cells with at least one run by today's recipes."""
        return sum(bool(row.results) for row in self.rows)


@dataclass
class Results:
    """The ledger's results, each read once, with Ω by the bound of the same recipe and seed."""

    ledger: Ledger
    _found: dict[str, Result | None] = field(default_factory=dict)
    _archived: dict[Path, Result] = field(default_factory=dict)

    def find(self, config: RunConfig) -> Result | None:
        """Return the result of a run, if the ledger has it."""
        path = self.ledger.path_of(config)
        if path.name not in self._found:
            self._found[path.name] = self.ledger.find(config)
        return self._found[path.name]

    def bound_accuracies(self, config: RunConfig, sizes: Sequence[int]) -> list[float] | None:
        """Return the bound's accuracy after each task of a run, if the bound was run.

        A stage learns the labeled images of all classes so far, however they are cut into tasks: a
        bound of more tasks serves where its stages end where the tasks do.
        """
        bounds = [bound_config(config)]
        if config.order == "random" and config.task_sizes is None:
            bounds += [bounds[0].replace(tasks=2 * len(sizes)), bounds[0].replace(tasks=20)]
        ends = np.cumsum(sizes).tolist()
        for bound in bounds:
            result = self.find(bound)
            if result is None:
                continue
            stages = np.cumsum(result["task_sizes"]).tolist()
            after = dict(zip(stages, result["metrics"]["accuracies"], strict=True))
            if set(ends) <= after.keys():
                return [after[end] for end in ends]
        return None

    def of_archived(
        self, archived: Sequence[Archived], config: RunConfig, metric: str
    ) -> tuple[float, ...]:
        """Return a figure of archived runs, Ω by the archived bound that is nearest."""
        bounds = {one.seed: one for one in self.ledger.archive.nearest(bound_config(config))}
        values = []
        for one in archived:
            result, value = self._read(one.path), None
            if metric == "omega" and one.seed in bounds:
                bound = self._read(bounds[one.seed].path)["metrics"]["accuracies"]
                own = result["metrics"]["accuracies"]
                value = omega(np.array(own), np.array(bound)) if len(own) == len(bound) else None
            elif metric not in ("omega", *MEMORY):
                value = self.metric(result, config, metric)
            values += [] if value is None else [value]
        return tuple(values)

    def _read(self, path: Path) -> Result:
        if path not in self._archived:
            self._archived[path] = read_result(path)
        return self._archived[path]

    def metric(self, result: Result, config: RunConfig, metric: str) -> float | None:
        """Return a figure of a run by the name that experiments use."""
        if metric == "auroc":
            known = [task["detector"]["auroc"] for task in result["tasks"]]
            known = [value for value in known if value is not None]
            return sum(known) / len(known) if known else None
        if config.method == BOUND and metric in NOT_OF_BOUNDS:
            return None
        if metric == "omega":
            bound = self.bound_accuracies(config, result["task_sizes"])
            if bound is None:
                return None
            return omega(np.array(result["metrics"]["accuracies"]), np.array(bound))
        value: float | None = result["metrics"].get(metric)
        return value


def table_of(experiment: Experiment, results: Results, seeds: Iterable[int] = ()) -> TableModel:
    """Return an experiment with the ledger's runs of these seeds, or of its own."""
    wanted, ledger = tuple(seeds) or experiment.seeds, results.ledger
    found = {
        cell.name: {
            seed: result
            for seed in wanted
            if (result := results.find(cell.config.replace(seed=seed))) is not None
        }
        for cell in experiment.cells
    }
    budget = _base_budget(experiment, found, results)
    rows = []
    for cell in experiment.cells:
        runs = found[cell.name]
        archived = [] if runs else ledger.archive.nearest(cell.config)
        figures = {
            metric: _figure(cell, metric, runs, archived, results, budget)
            for metric in experiment.metrics
        }
        rows.append(Row(cell, runs, archived, figures, wanted))
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


def _figure(
    cell: Cell,
    metric: str,
    runs: dict[int, Result],
    archived: list[Archived],
    results: Results,
    budget: list[tuple[int, float]],
) -> Figure:
    published = cell.published.get(metric)
    is_target = (cell.config.method, metric) != IS_NO_TARGET
    if archived:
        preset = archived[0].preset
        values = results.of_archived(archived, cell.config, metric)
        return Figure(metric, published, values, preset, is_target=is_target)
    if metric in MEMORY:
        found = [
            _worth(metric, result, cell, seed, results, budget) for seed, result in runs.items()
        ]
        known = [one for one in found if one is not None]
        values = tuple(value for value, _ in known)
        return Figure(metric, published, values, at_least=any(least for _, least in known))
    measured = [
        results.metric(result, cell.config.replace(seed=seed), metric)
        for seed, result in runs.items()
    ]
    values = tuple(value for value in measured if value is not None)
    return Figure(metric, published, values, is_target=is_target)


MEMORY = ("equivalent_coreset", "memory_saving")


def _base_budget(
    experiment: Experiment, found: dict[str, dict[int, Result]], results: Results
) -> list[tuple[int, float]]:
    """Return the Ω of Base at each coreset size that was run."""
    budget = []
    for cell in experiment.cells if set(MEMORY) & set(experiment.metrics) else ():
        omegas = [
            results.metric(result, cell.config.replace(seed=seed), "omega")
            for seed, result in found[cell.name].items()
        ]
        known = [value for value in omegas if value is not None]
        if cell.config.method == "base" and known:
            budget.append((cell.config.coreset, mean_and_deviation(known)[0]))
    return sorted(budget)


def _worth(
    metric: str,
    result: Result,
    cell: Cell,
    seed: int,
    results: Results,
    budget: list[tuple[int, float]],
) -> tuple[float, bool] | None:
    """Return a figure of memory, and whether it is only known to be larger.

    It is where Base reaches less than the run with every coreset that was measured; the figure is
    then that of the largest one. With a single size there is nothing to measure by.
    """
    reached = results.metric(result, cell.config.replace(seed=seed), "omega")
    if cell.config.method == "base" or reached is None or len(budget) < 2:
        return None
    stored = equivalent_coreset([size for size, _ in budget], [y for _, y in budget], reached)
    images = float(budget[-1][0]) if stored is None else stored
    if metric == "memory_saving":
        images = memory_saving(images, UNLABELED_PER_TASK)
    return images, stored is None
