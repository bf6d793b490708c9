"""What has to be run for some experiments: each run once, however many cells it serves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.suite.catalogue import Cell, Experiment
from distillmatch.suite.names import BOUND, bound_config, run_name


@dataclass(frozen=True)
class PlannedRun:
    """One run, and the experiments that have a cell for it or need it as their bound."""

    name: str
    config: RunConfig
    experiments: tuple[str, ...]


def plan(
    experiments: Sequence[Experiment],
    seeds: Iterable[int] | None = None,
    methods: Iterable[str] | None = None,
    cells: Iterable[str] | None = None,
    *,
    bounds: bool = True,
) -> list[PlannedRun]:
    """Return the runs of some experiments, bounds first, so that others find theirs in the ledger.

    Without `seeds`, each experiment's own. With `methods`, only the cells of these; with `cells`,
    only those that `is_named` finds by one of them, in the order of these names. The bound of every
    class order among them is in the plan too, because Ω needs it, unless there are to be no
    `bounds` but those asked for.
    """
    chosen = None if methods is None else set(methods)
    named = None if cells is None else tuple(cells)
    wanted_seeds = None if seeds is None else tuple(seeds)
    _refuse_absent_methods(experiments, chosen)
    _refuse_absent_cells(experiments, named)
    found: dict[str, PlannedRun] = {}
    for experiment in experiments:
        for seed in wanted_seeds or experiment.seeds:
            for config in _configs(experiment, seed, chosen, named, bounds=bounds):
                name = run_name(config)
                served = found[name].experiments if name in found else ()
                if experiment.name not in served:
                    served = (*served, experiment.name)
                found[name] = PlannedRun(name, config, served)
    return sorted(found.values(), key=lambda run: run.config.method != BOUND)


def is_named(cell: Cell, name: str) -> bool:
    """Tell whether a cell is meant by its row, as `/column`, or by both as `row/column`."""
    return name in (cell.row, f"/{cell.column}", cell.name)


def _configs(
    experiment: Experiment,
    seed: int,
    methods: set[str] | None,
    names: Sequence[str] | None,
    *,
    bounds: bool,
) -> list[RunConfig]:
    """Return the runs of one experiment with one seed, each with its bound, if any, before it."""
    cells = [cell for cell in experiment.cells if methods is None or cell.config.method in methods]
    if names is not None:
        named = [cell for name in names for cell in cells if is_named(cell, name)]
        cells = list({cell.name: cell for cell in named}.values())
    configs = []
    for cell in cells:
        config = cell.config.replace(seed=seed)
        configs += [bound_config(config)] if bounds else []
        configs.append(config)
    return configs


def _refuse_absent_methods(experiments: Sequence[Experiment], methods: set[str] | None) -> None:
    present = {cell.config.method for one in experiments for cell in one.cells}
    for method in sorted((methods or set()) - present):
        raise ConfigError(
            f"no chosen experiment has method '{method}'; they have {', '.join(sorted(present))}"
        )


def _refuse_absent_cells(experiments: Sequence[Experiment], names: Sequence[str] | None) -> None:
    cells = [cell for one in experiments for cell in one.cells]
    for name in names or ():
        if not any(is_named(cell, name) for cell in cells):
            rows = ", ".join(dict.fromkeys(f"'{cell.row}'" for cell in cells))
            columns = ", ".join(dict.fromkeys(f"'{cell.column}'" for cell in cells))
            raise ConfigError(
                f"no chosen experiment has cell '{name}': expected ROW, /COLUMN or ROW/COLUMN with "
                f"the rows {rows} and the columns {columns}"
            )
