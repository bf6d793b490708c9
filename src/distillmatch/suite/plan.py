"""What has to be run for some experiments: each run once, however many cells it serves."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError, did_you_mean
from distillmatch.suite.catalogue import Cell, Experiment
from distillmatch.suite.names import BOUND, bound_config, run_name


class PlannedRun(NamedTuple):
    """One run, and the experiments that have a cell for it or need it as their bound."""

    name: str
    config: RunConfig
    experiments: tuple[str, ...]


def plan(
    experiments: Sequence[Experiment],
    seeds: Sequence[int] | None = None,
    methods: Collection[str] | None = None,
    cells: Sequence[str] | None = None,
    *,
    bounds: bool = True,
) -> list[PlannedRun]:
    """Return the runs of some experiments, those of bounds first.

    Without `seeds`, each experiment's own. `methods` and `cells` choose as in `chosen_cells`. With
    `bounds`, the bound of every run is in the plan too, because Ω needs it.
    """
    _refuse_absent(experiments, methods, cells)
    found: dict[str, PlannedRun] = {}
    for experiment in experiments:
        for seed in seeds or experiment.seeds:
            for cell in chosen_cells(experiment, methods, cells):
                config = cell.config.replace(seed=seed)
                for one in (bound_config(config), config) if bounds else (config,):
                    name = run_name(one)
                    served = found[name].experiments if name in found else ()
                    served = tuple(dict.fromkeys((*served, experiment.name)))
                    found[name] = PlannedRun(name, one, served)
    return sorted(found.values(), key=lambda run: run.config.method != BOUND)


def chosen_cells(
    experiment: Experiment,
    methods: Collection[str] | None = None,
    names: Sequence[str] | None = None,
) -> list[Cell]:
    """Return the cells of these methods; `names` choose as ROW, as /COLUMN or as ROW/COLUMN."""
    cells = [cell for cell in experiment.cells if methods is None or cell.config.method in methods]
    if names is None:
        return cells
    named = [cell for name in names for cell in cells if name in _names(cell)]
    return list({cell.name: cell for cell in named}.values())


def _names(cell: Cell) -> tuple[str, str, str]:
    return cell.row, f"/{cell.column}", cell.name


def _refuse_absent(
    experiments: Sequence[Experiment], methods: Collection[str] | None, names: Sequence[str] | None
) -> None:
    """Refuse methods and names of cells that no experiment has."""
    cells = [cell for one in experiments for cell in one.cells]
    present = {cell.config.method for cell in cells}
    for method in sorted({*(methods or ())} - present):
        raise ConfigError(
            f"no chosen experiment has method '{method}'{did_you_mean(method, present)}; they have "
            f"{', '.join(sorted(present))}"
        )
    for name in {*(names or ())} - {name for cell in cells for name in _names(cell)}:
        rows = ", ".join(dict.fromkeys(f"'{cell.row}'" for cell in cells))
        columns = ", ".join(dict.fromkeys(f"'{cell.column}'" for cell in cells))
        raise ConfigError(
            f"no chosen experiment has cell '{name}': expected ROW, /COLUMN or ROW/COLUMN with "
            f"the rows {rows} and the columns {columns}"
        )
