"""The paper's cells with what the runs gave: published beside reproduced, and how they compare."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from distillmatch.config import RunConfig
from distillmatch.errors import ResultError
from distillmatch.metrics import mean_and_deviation
from distillmatch.report.comparison import (
    BOUNDS,
    NOT_OF_BOUNDS,
    Group,
    Result,
    grouped,
    metric_of,
    with_omega,
)
from distillmatch.report.paper_memory import MEMORY, Budget, base_budget, worth_in_stored
from distillmatch.run import read_result
from distillmatch.suite.catalogue import Cell, Experiment, Published
from distillmatch.suite.identity import bound_config, identity
from distillmatch.suite.ledger import Ledger, config_of
from distillmatch.suite.schema import schema_problems

if TYPE_CHECKING:
    from distillmatch.report.paper_reasons import Given

Verdict = Literal["within", "above", "below", "unjudged", "open"]
VERDICTS: dict[Verdict, tuple[str, str]] = {
    "within": ("●", "within two deviations"),
    "above": ("▲", "beyond two deviations, higher"),
    "below": ("▼", "beyond two deviations, lower"),
    "unjudged": ("◇", "not judged: no published deviation, or not measured here"),
    "open": ("○", "not yet run"),
}
"""The mark of each verdict: a shape and words, so that nothing hangs on colour."""

METRICS = {
    "A_N": "A_N",
    "omega": "Ω",
    "bwt": "BWT",
    "fgt": "FGT",
    "auroc": "AUROC",
    "equivalent_coreset": "stored images",
    "memory_saving": "saved per image",
}
MEANINGS = {
    "A_N": "accuracy over all classes after the last task, higher is better",
    "omega": "accuracy as a share of the bound's, mean over tasks, higher is better",
    "bwt": "backward transfer, each task among its own classes, higher is better",
    "fgt": "forgetting among all classes seen, lower is better",
    "auroc": "how well the detector tells seen from unseen classes, mean over tasks",
    "equivalent_coreset": "images that Base must store for the same Ω",
    "memory_saving": "the same for each unlabelled image of a task",
}
UNKNOWN_FIELD = "is no field of a result"


@dataclass(frozen=True)
class Entry:
    """One metric of one cell: the published figure, and that of every seed that was run.

    Some that were published are never measured here, such as the forgetting of a bound. `at_least`
    says that a seed lies beyond all that was measured, so that its value is the least it can be.
    `why` is what is known of why it differs from the published figure.
    """

    metric: str
    published: Published | None
    values: tuple[float, ...]
    measured: bool = True
    at_least: bool = False
    why: "Given | None" = None

    @property
    def mean(self) -> float | None:
        """The mean over the seeds that were run."""
        return mean_and_deviation(self.values)[0] if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds, if there are several and all are known."""
        known = self.values and not self.at_least
        return mean_and_deviation(self.values)[1] if known else None

    @property
    def difference(self) -> float | None:
        """How much more the runs gave than was published."""
        if self.mean is None or self.published is None:
            return None
        return self.mean - self.published.mean

    @property
    def verdict(self) -> Verdict:
        """Whether the mean lies within two published deviations of the published mean.

        Of a mean that may be higher only that can be told, that it lies above them.
        """
        if self.mean is None:
            return "open" if self.measured else "unjudged"
        difference = self.difference
        if difference is None or self.published is None or self.published.deviation is None:
            return "unjudged"
        if difference <= 2 * self.published.deviation + 1e-9 and self.at_least:
            return "unjudged"
        if abs(difference) <= 2 * self.published.deviation + 1e-9:
            return "within"
        return "above" if difference > 0 else "below"


@dataclass(frozen=True)
class Record:
    """One cell of a table with its runs, in the order of their seeds."""

    cell: Cell
    results: tuple[Result, ...]
    entries: tuple[Entry, ...]

    def entry(self, metric: str) -> Entry | None:
        """Return the figures of a metric; a cell may leave some out."""
        return next((entry for entry in self.entries if entry.metric == metric), None)

    @property
    def method(self) -> str:
        """The method of the cell."""
        return self.cell.config.method

    @property
    def group(self) -> Group:
        """The runs under the name of the table's row."""
        return Group(self.method, self.cell.row, self.results)


@dataclass(frozen=True)
class Reproduced:
    """An experiment with everything that was run of it."""

    experiment: Experiment
    records: tuple[Record, ...]

    def record(self, row: str, column: str) -> Record | None:
        """Return the cell at a row and a column; a table may leave some out."""
        return next((r for r in self.records if (r.cell.row, r.cell.column) == (row, column)), None)

    @property
    def entries(self) -> list[Entry]:
        """All figures of the table that were published."""
        return [
            entry
            for record in self.records
            for entry in record.entries
            if entry.published is not None
        ]

    def counted(self, *verdicts: Verdict) -> int:
        """Count the published figures with one of the verdicts."""
        return sum(entry.verdict in verdicts for entry in self.entries)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Count the published figures that are within, beyond, not judged, and not yet run."""
        beyond = self.counted("above", "below")
        return self.counted("within"), beyond, self.counted("unjudged"), self.counted("open")

    @property
    def cells_run(self) -> int:
        """Count the cells with at least one run."""
        return sum(bool(record.results) for record in self.records)


@dataclass(frozen=True)
class Paper:
    """All that a report shows: the experiments, and the runs that belong to none of them.

    `by_release` are the paper's experiments once more, with the readings of the authors' release.
    """

    reproduced: tuple[Reproduced, ...]
    results: tuple[Result, ...]
    others: tuple[Group, ...]
    by_release: tuple[Reproduced, ...] = ()

    def beside(self, one: Reproduced) -> Reproduced | None:
        """Return an experiment with the release's readings, if any cell of it was run with them.

        One's own may have these readings itself, and then there is nothing to put beside it.
        """
        name, runs = one.experiment.name, [record.results for record in one.records]
        for other in self.by_release:
            if other.experiment.name == name and other.cells_run:
                return other if [record.results for record in other.records] != runs else None
        return None

    @property
    def of_paper(self) -> tuple[Reproduced, ...]:
        """The tables and figures that the paper has."""
        return tuple(one for one in self.reproduced if not one.experiment.beyond_paper)

    @property
    def beyond(self) -> tuple[Reproduced, ...]:
        """The experiments that go beyond the paper."""
        return tuple(one for one in self.reproduced if one.experiment.beyond_paper)

    @property
    def compared(self) -> bool:
        """Whether anything was published for what is shown; nothing was for small experiments."""
        return any(one.entries for one in self.reproduced)

    @property
    def small(self) -> bool:
        """Whether the experiments are made small."""
        return any(one.experiment.scale == "quick" for one in self.reproduced)

    @property
    def heading(self) -> str:
        """What is shown, in a few words."""
        return "The paper’s experiments, made small" if self.small else "The paper, reproduced"

    @property
    def methods(self) -> list[str]:
        """The methods that are shown anywhere, in the order of their first appearance."""
        cells = [r.method for one in self.reproduced for r in one.records]
        return list(dict.fromkeys([*cells, *(result["method"] for result in self.results)]))


def read_results(paths: Sequence[Path]) -> list[Result]:
    """Read results from files, from folders of runs, and from folders that are ledgers."""
    found = []
    for path in paths:
        ledger = path.is_dir() and not (path / "result.json").exists()
        files = Ledger(path).paths() if ledger else [path]
        if not files:
            raise ResultError(f"{path}: expected results of runs, found none in this folder")
        for file in files:
            result = read_result(file)
            # A field that is not known here may come from a later version, and is left alone.
            wrong = [one for one in schema_problems(result) if not one.endswith(UNKNOWN_FIELD)]
            if wrong:
                raise ResultError(f"{file}: expected a result of a run, but {wrong[0]}")
            config_of(result, file)
            found.append(result)
    return found


def gather(
    experiments: Sequence[Experiment],
    results: Iterable[Result],
    by_release: Sequence[Experiment] = (),
) -> Paper:
    """Put every result into the cells it belongs to, with Ω where its bound is among them."""
    known = with_omega(_once(results))
    complete = [result for result in known if result["complete"]]
    by_config = runs_by_config(known)
    shown = (*experiments, *by_release)
    configs = [cell.config for experiment in shown for cell in experiment.cells]
    used = {config_key(one) for config in configs for one in (config, bound_config(config))}
    others = [result for result in complete if _key_of(result) not in used]
    reproduced, beside = (
        tuple(_reproduced(experiment, by_config) for experiment in some)
        for some in (experiments, by_release)
    )
    return Paper(reproduced, tuple(known), tuple(grouped(others)), beside)


def runs_by_config(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Return the complete runs of each configuration by its `config_key`, in order of seeds."""
    found: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: int(result["seed"])):
        if result["complete"]:
            found.setdefault(_key_of(result), []).append(result)
    return found


def entry_of(results: Sequence[Result], metric: str, published: Published | None = None) -> Entry:
    """Return a figure of some runs, that of every seed that has it."""
    values = [metric_of(result, metric) for result in results]
    return Entry(metric, published, tuple(value for value in values if value is not None))


def shown(mean: float | None, deviation: float | None = None, decimals: int = 1) -> str:
    """Return a figure as tables write it, ± the deviation if there is one."""
    if mean is None:
        return "–"
    text = f"{mean:.{decimals}f}"
    if deviation is not None:
        text += f" ± {deviation:.{decimals}f}"
    return text.replace("-", "−")


def decimals_of(metric: str) -> int:
    """Return the decimals that the paper gives a metric."""
    return {"equivalent_coreset": 0, "memory_saving": 2}.get(metric, 1)


def shown_published(entry: Entry | None) -> str:
    """Return the published figure of an entry."""
    if entry is None or entry.published is None:
        return shown(None)
    return shown(entry.published.mean, entry.published.deviation, decimals_of(entry.metric))


def shown_here(entry: Entry | None, mark: bool = False) -> str:
    """Return the figure that the runs of an entry gave, with the mark of its verdict if asked."""
    if entry is None or entry.mean is None:
        return shown(None)
    figure = shown(entry.mean, entry.deviation, decimals_of(entry.metric))
    if entry.at_least:
        figure = _more_than(entry.mean, entry.metric)
    return f"{figure} {VERDICTS[entry.verdict][0]}" if mark and entry.published else figure


def shown_difference(entry: Entry) -> str:
    """Return a difference with its sign."""
    if entry.difference is None:
        return ""
    if entry.at_least:
        return _more_than(entry.difference, entry.metric, "+")
    return f"{entry.difference:+.{decimals_of(entry.metric)}f}".replace("-", "−")


def _more_than(least: float, metric: str, sign: str = "") -> str:
    """Return a figure that may be larger, rounded down so that what is said stays true."""
    decimals = decimals_of(metric)
    scale = 10.0**decimals
    return f"> {floor(least * scale + 1e-6) / scale:{sign}.{decimals}f}".replace("-", "−")


def _reproduced(experiment: Experiment, runs: dict[str, list[Result]]) -> Reproduced:
    cells = [(cell, tuple(runs.get(config_key(cell.config), ()))) for cell in experiment.cells]
    plain = tuple(Record(cell, results, ()) for cell, results in cells)
    budget = base_budget(plain)
    records = []
    for cell, results in cells:
        entries = []
        for metric in experiment.metrics:
            if metric in MEMORY and metric not in cell.published and cell.config.method == "base":
                continue
            entries.append(_entry(cell, metric, results, budget))
        records.append(Record(cell, results, tuple(entries)))
    return Reproduced(experiment, tuple(records))


def _entry(cell: Cell, metric: str, results: Sequence[Result], budget: Budget) -> Entry:
    published = cell.published.get(metric)
    if metric not in MEMORY:
        measured = not (cell.config.method in BOUNDS and metric in NOT_OF_BOUNDS)
        return replace(entry_of(results, metric, published), measured=measured)
    found = [worth_in_stored(result, metric, budget) for result in results]
    known = tuple(value for value, _ in found if value is not None)
    return Entry(metric, published, known, at_least=any(least for _, least in found))


def _key_of(result: Result) -> str:
    """Return what a run's cells are found by; a saved stream or a fold belongs to no cell."""
    own = "/" in result["stream"]["fingerprint"]
    return config_key(config_of(result, Path("result"))) + (
        result["stream"]["fingerprint"] if own else ""
    )


def config_key(config: RunConfig) -> str:
    """Return what the seeds of one configuration have in common, and no other run has."""
    return repr(sorted((k, v) for k, v in identity(config).items() if k != "seed"))


def _once(results: Iterable[Result]) -> list[Result]:
    """Leave out results that are given twice, as those of a ledger that is named again."""
    seen: dict[str, Result] = {}
    for result in results:
        key = f"{_key_of(result)} {result['seed']} {result['stream']['fingerprint']}"
        if key not in seen or (result["complete"] and not seen[key]["complete"]):
            seen[key] = result
    return list(seen.values())
