"""Tables of results: published figures beside ours, and several runs side by side.

A table is heads, of which those of numbers begin with `>`, and rows of text: every renderer shows
the same. A cell whose recipe has no run yet shows the archived run that is nearest to it, marked as
such; archived figures are never judged.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.table import Table

from distillmatch.config import RunConfig, StreamConfig
from distillmatch.metrics import (
    Verdict,
    agreement,
    equivalent_coreset,
    mean_and_deviation,
    omega_curve,
    stages_of,
)
from distillmatch.runs.result import VERSION, complete_record
from distillmatch.suite.catalogue import Cell, Experiment, Published
from distillmatch.suite.ledger import Ledger
from distillmatch.suite.names import bound_config
from distillmatch.terminal import make_table

Result = dict[str, Any]
TextTable = tuple[list[str], list[list[str]]]
"""Heads and rows."""
BOUNDS = ("offline", "offline-unlabeled")
NAMES = {
    "base": "Base",
    "e2e": "E2E",
    "dr": "DR",
    "gd": "GD",
    "dm": "DM",
    "worldmatch": "WorldMatch",
    "er": "ER",
    "pseudo-er": "PseudoER",
    "csl": "CSL",
    "nncsl": "NNCSL",
    "offline": "UB",
    "offline-unlabeled": "UB with unlabeled",
}
METRICS = {
    "A_N": "A_N",
    "omega": "Ω",
    "bwt": "BWT",
    "fgt": "FGT",
    "auroc": "AUROC",
    "equivalent_coreset": "stored images",
    "memory_saving": "saved per image",
}
FIGURES = ("A_N", "omega", "bwt", "fgt")
MEMORY = ("equivalent_coreset", "memory_saving")
DECIMALS = {"equivalent_coreset": 0, "memory_saving": 2}
MARKS: dict[Verdict | None, str] = {"agrees": "●", "higher": "▲", "lower": "▼", None: ""}
"""A shape for each verdict, so that nothing depends on color."""
DETECTOR = {
    "accepted": "taken",
    "accepted_past": "past",
    "pseudo_labels_right": "right",
    "auroc": "AUROC",
    "tpr": "TPR",
    "fpr": "FPR",
}
UNLABELED_PER_TASK = 4000
"""Unlabeled images of a task in figure 3, the only experiment with figures of memory."""
IS_NO_TARGET = ("base", "bwt")
"""Base's published BWT mixes one run without distillation with two that distill."""


def metric_of(result: Result, name: str) -> float | None:
    """Return a figure of a result by the name that experiments use.

    A bound learns every stage from nothing: differences between stages say nothing about it.
    """
    if name == "auroc":
        areas = _known(task["detector"]["auroc"] for task in result["tasks"])
        return fmean(areas) if areas else None
    if name in ("bwt", "fgt") and result["method"] in BOUNDS:
        return None
    value: float | None = result["metrics"].get(name)
    return value


def number_shown(mean: float | None, deviation: float | None = None, decimals: int = 1) -> str:
    """Return a number as tables write it, ± the deviation if there is one."""
    if mean is None:
        return "–"
    text = f"{mean:.{decimals}f}" + ("" if deviation is None else f" ± {deviation:.{decimals}f}")
    return text.replace("-", "−")


def stored_shown(result: Result) -> str:
    """Return the number of stored images in words: a bound stores all labeled ones."""
    return "all" if result["method"] in BOUNDS else f"{result['memory']['stored_images']:,}"


def code_shown(result: Result) -> str:
    """Return the commit in short, and whether that is all of the code that ran.

    Where only a copy ran, its files are named as git does, to be compared with the commit's.
    """
    commit: dict[str, Any] = result["commit"]
    if commit["id"] == "unknown":
        return "unknown commit"
    copied = f", tree {commit['tree'][:8]}" if "tree" in commit else ", changes unknown"
    beside = {True: " with changes", False: "", None: copied}[commit["dirty"]]
    return f"{commit['id'][:8]}{beside}"


def with_bound(result: Result, offline: Sequence[float] | None) -> Result:
    """Return a result with Ω and its curve by a bound's accuracy after each of its tasks."""
    curve = None if offline is None else omega_curve(result["metrics"]["accuracies"], offline)
    known = None if curve is None else curve.tolist()
    metrics = {**result["metrics"], "omega": known and known[-1], "omega_curve": known}
    return {**result, "metrics": metrics}


# Experiments


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

    @property
    def text(self) -> str:
        """Mean ± deviation, and a mark if a run is archived."""
        said = number_shown(self.mean, self.deviation, DECIMALS.get(self.metric, 1))
        said = f"> {said}" if self.at_least else said
        return f"{said} †" if self.archived and self.values else said

    @property
    def published_text(self) -> str:
        """What was published."""
        if self.published is None:
            return number_shown(None)
        mean, deviation = self.published.mean, self.published.deviation
        return number_shown(mean, deviation, DECIMALS.get(self.metric, 1))


@dataclass(frozen=True)
class Row:
    """A cell of an experiment with its runs, or the archived ones that stand in for them."""

    cell: Cell
    runs: list[Result]
    archived: list[Result]
    figures: dict[str, Figure]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class TableModel:
    """An experiment with everything that was run of it."""

    experiment: Experiment
    rows: list[Row]

    def row(self, name: str, column: str) -> Row | None:
        """Return the cell at a row and a column; a table may leave some out."""
        return next((r for r in self.rows if (r.cell.row, r.cell.column) == (name, column)), None)

    @property
    def is_compared(self) -> bool:
        """Whether any of its figures was published."""
        return any(row.cell.published for row in self.rows)

    def text(self, between: str | None = None) -> TextTable:
        """Return the table as text; `between` joins what was published and ours in one cell."""
        heads, rows = ["row", "column"], []
        split = self.is_compared and between is None
        for metric in self.experiment.metrics:
            name = METRICS[metric]
            heads += [f">{name} published", ">here"] if split else [f">{name}"]
        for row in self.rows:
            cells = [row.cell.row, row.cell.column]
            for one in row.figures.values():
                pair = [one.published_text] if self.is_compared else []
                pair.append(f"{one.text} {MARKS[one.verdict]}".strip())
                cells += pair if between is None else [between.join(pair)]
            rows.append([*cells, ", ".join(str(run["seed"]) for run in row.runs) or "–"])
        return [*heads, ">seeds"], rows


class Results:
    """The ledger's results, each read once, with Ω by the bound of the same recipe and seed."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._found: dict[Path, Result | None] = {}
        self._read = cache(ledger.archive.read)

    def find(self, config: RunConfig) -> Result | None:
        """Return the result of a run, if the ledger has it."""
        path = self.ledger.path_of(config)
        if path not in self._found:
            self._found[path] = self.ledger.find(config)
        return self._found[path]

    def runs(self, config: RunConfig, seeds: Iterable[int]) -> list[Result]:
        """Return the runs of a cell with these seeds that the ledger has."""
        found = []
        for one in (config.replace(seed=seed) for seed in seeds):
            if (result := self.find(one)) is not None:
                bounds, tasks = [bound_config(one)], len(result["task_sizes"])
                if one.order == "random" and one.task_sizes is None:  # also those with more tasks
                    bounds += [bounds[0].replace(tasks=count) for count in (2 * tasks, 20)]
                found.append(with_omega([*filter(None, map(self.find, bounds)), result])[-1])
        return found

    def archived(self, config: RunConfig) -> tuple[list[Result], str | None]:
        """Return the archived runs nearest to a cell, each by its nearest bound; and the preset."""
        archive, runs = self.ledger.archive, []
        bounds, nearest = archive.nearest(bound_config(config)), archive.nearest(config)
        for seed, one in nearest.items():
            result, offline = self._read(one), list[float]()
            if seed in bounds:
                offline = self._read(bounds[seed])["metrics"]["accuracies"]
            fits = len(offline) == len(result["metrics"]["accuracies"])
            runs.append(with_bound(result, offline if fits else None))
        return runs, next((one.preset for one in nearest.values()), None)


def table_of(experiment: Experiment, results: Results, seeds: Iterable[int] = ()) -> TableModel:
    """Return an experiment with the ledger's runs of these seeds, or of its own."""
    wanted, rows = tuple(seeds) or experiment.seeds, []
    runs = {cell.name: results.runs(cell.config, wanted) for cell in experiment.cells}
    budget = []  # the Ω of Base at each coreset size that was run
    for cell in experiment.cells:
        omegas = _known(metric_of(run, "omega") for run in runs[cell.name])
        if cell.config.method == "base" and omegas:
            budget.append((cell.config.coreset, fmean(omegas)))
    for cell in experiment.cells:
        own, preset, archived = runs[cell.name], None, list[Result]()
        if not own:
            archived, preset = results.archived(cell.config)
        figures: dict[str, Figure] = {}
        for metric in experiment.metrics:
            published = cell.published.get(metric)
            if metric in MEMORY:
                figures[metric] = _memory_figure(cell, metric, own, sorted(budget))
                continue
            values = _known(metric_of(run, metric) for run in own or archived)
            is_target = (cell.config.method, metric) != IS_NO_TARGET
            figures[metric] = Figure(metric, published, values, preset, is_target=is_target)
        rows.append(Row(cell, own, archived, figures, wanted))
    return TableModel(experiment, rows)


def _memory_figure(
    cell: Cell, metric: str, runs: Sequence[Result], budget: list[tuple[int, float]]
) -> Figure:
    """Return the images that Base must store to reach as much as the runs.

    Where Base reaches less with every coreset that was measured, it is the largest one, and the
    figure only known to be larger. With a single size there is nothing to measure by.
    """
    values, at_least = [], False
    measurable = cell.config.method != "base" and len(budget) > 1
    for reached in _known(metric_of(run, "omega") for run in runs if measurable):
        stored = equivalent_coreset(budget, reached)
        at_least |= stored is None
        images = float(budget[-1][0]) if stored is None else stored
        values.append(images / (UNLABELED_PER_TASK if metric == "memory_saving" else 1))
    return Figure(metric, cell.published.get(metric), tuple(values), at_least=at_least)


def _known(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None)


# Results side by side


class Group(NamedTuple):
    """Runs that differ in nothing but their seed."""

    method: str
    name: str
    results: tuple[Result, ...]


def grouped(results: Sequence[Result]) -> list[Group]:
    """Put the seeds of one configuration together; each group's name says how it differs.

    A run that is given twice counts once. Runs that are not finished stand apart, as do those that
    learned with a seed once more: neither is one more seed of the finished ones.
    """
    groups: dict[tuple[str, str], dict[str, Result]] = defaultdict(dict)
    for result in results:
        remark, times = "", 1
        if not result["complete"]:
            remark = f" (unfinished: {len(result['tasks'])} of {len(result['task_sizes'])} tasks)"
        # The folds of a tuning share a seed, not the fingerprint.
        learned = f"{result['seed']} {result['stream']['fingerprint']}"
        key = repr(sorted(_compared(result).items())), remark
        while learned in groups[key] and _measured(groups[key][learned]) != _measured(result):
            times += 1
            key = key[0], f"{remark} (run {times} of the same seed)"
        groups[key].setdefault(learned, result)
    members = [tuple(runs.values()) for runs in groups.values()]
    every, found = [_compared(runs[0]) for runs in members], list[Group]()
    for own, (_, remark), runs in zip(every, groups, members, strict=True):
        said = ", ".join(f"{key} {own[key]}" for key in own if _differs(key, own, every))
        method: str = runs[0]["method"]
        name = NAMES.get(method, method) + (f" ({said})" if said else "")
        oracle = " (oracle)" if runs[0]["uses_truth"] else ""
        found.append(Group(method, f"{name}{oracle}{remark}", runs))
    return found


def _compared(result: Result) -> dict[str, Any]:
    """Return what makes a configuration another one: all but the seed and the place it ran."""
    left_out = ("seed", "device", "precision")
    # How many tasks there are may have been said or not.
    config = {**_recorded(result), "tasks": len(result["task_sizes"])}
    return {key: value for key, value in config.items() if key not in left_out}


def _recorded(result: Result) -> dict[str, Any]:
    """Return a recorded configuration with the method's options beside the rest."""
    config = result["config"]
    config = complete_record(config) if result["version"] == VERSION else {**config}
    options = config.pop("options", {})
    return {**config, **options}


def _measured(result: Result) -> tuple[Any, ...]:
    """Return what tells runs apart: not all metrics, because Ω may have been filled in."""
    return result["metrics"]["accuracies"], result["seconds"]["total"]


def _differs(key: str, own: dict[str, Any], others: Sequence[dict[str, Any]]) -> bool:
    """Return whether a value tells configurations apart; some methods see no unlabeled images."""
    if key not in StreamConfig.model_fields:
        others = [other for other in others if other["method"] == own["method"]]
    if key in ("unlabeled", "unlabeled_per_task"):
        others = [one for one in others if "none" not in (own["unlabeled"], one.get("unlabeled"))]
    return any(other.get(key) != own[key] for other in others)


def with_omega(results: Sequence[Result]) -> list[Result]:
    """Fill in Ω and its curve where a bound of the same stream, training and recipe is among them.

    A bound that cuts the classes into more tasks serves where none cuts them alike.
    """
    bounds: dict[str, list[Result]] = defaultdict(list)
    for result in sorted(results, key=lambda result: len(result["task_sizes"])):
        # Ω is measured by the bound that learns weak views.
        strong = result["config"].get("strong_labels", False)
        if result["method"] == "offline" and strong in (False, "none"):
            bounds[_bound_key(result)].append(result)
    filled = []
    for result in results:
        if result["complete"] and result["metrics"]["omega"] is None:
            alike = [b for b in bounds[_bound_key(result)] if b["classes"] == result["classes"]]
            sizes = result["task_sizes"]
            stages = (stages_of(b["metrics"]["accuracies"], b["task_sizes"], sizes) for b in alike)
            result = with_bound(result, next(filter(None, stages), None))  # noqa: PLW2901
        filled.append(result)
    return filled


def _bound_key(result: Result) -> str:
    """Return what a run and its bound have in common."""
    config, stream = _recorded(result), sorted(result["stream"].items())
    trained = [config.get(key) for key in ("network", "epochs", "recipe")]
    # With repetition a class's labeled images are divided over the tasks, however it is cut.
    cut = () if result["stream"].get("repetition") else ("tasks", "task_sizes")
    return repr(([pair for pair in stream if pair[0] not in cut], trained))


def comparison_table(results: Sequence[Result]) -> Table:
    """Return methods against metrics, mean ± deviation over seeds."""
    several = len({result["seed"] for result in results}) > 1
    over = "mean ± standard deviation over seeds" if several else "one seed"
    rows = [
        (
            name,
            len(runs),
            *(
                Figure(key, None, _known(metric_of(run, key) for run in runs)).text
                for key in FIGURES
            ),
            stored_shown(runs[0]),
            f"{fmean(run['seconds']['total'] for run in runs):.1f}",
        )
        for _, name, runs in grouped(with_omega(results))
    ]
    numbers = (f">{name}" for name in ("seeds", *map(METRICS.get, FIGURES), "stored", "seconds"))
    return make_table(("method", *numbers), rows, title=f"percent, {over}")


def task_table(result: Result) -> Table:
    """Return one run task by task, with the diagnostics of its gate."""
    judged = [k for k in DETECTOR if any(t["detector"][k] is not None for t in result["tasks"])]
    rows = []
    for number, task in enumerate(result["tasks"]):
        own, figures = result["R"][number][number], [task["detector"][key] for key in judged]
        rows.append((task["task"], *map(number_shown, (task["accuracy"], own, *figures))))
    about = "taken: unlabeled images accepted; past: of these, truly of past classes; right: "
    about += "pseudo-label correct; AUROC, TPR, FPR: of the gate for the next task"
    heads = [f">{name}" for name in ("task", "accuracy", "own", *map(DETECTOR.get, judged))]
    title = f"{NAMES.get(result['method'], result['method'])}, seed {result['seed']}"
    return make_table(heads, rows, title=title, caption=about if judged else None)
