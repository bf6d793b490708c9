"""What has to be run for some experiments: each run once, however many cells it serves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.suite.catalogue import Experiment
from distillmatch.suite.identity import BOUND, bound_config, run_name, shared_config


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
) -> list[PlannedRun]:
    """Return the runs of some experiments, bounds first, so that others find theirs in the ledger.

    Without `seeds`, each experiment's own. With `methods`, only the cells of these; the bound of
    every class order among them is in the plan always, because Ω needs it.
    """
    chosen = None if methods is None else set(methods)
    wanted_seeds = None if seeds is None else tuple(seeds)
    _refuse_absent_methods(experiments, chosen)
    found: dict[str, PlannedRun] = {}
    for experiment in experiments:
        for seed in wanted_seeds or experiment.seeds:
            for config in _configs(experiment, seed, chosen):
                name = run_name(config)
                served = found[name].experiments if name in found else ()
                if experiment.name not in served:
                    served = (*served, experiment.name)
                found[name] = PlannedRun(name, config, served)
    return sorted(found.values(), key=lambda run: run.config.method != BOUND)


def _configs(experiment: Experiment, seed: int, methods: set[str] | None) -> list[RunConfig]:
    """Return the runs of one experiment with one seed, each with its bound before it."""
    configs = []
    for cell in experiment.cells:
        if methods is None or cell.config.method in methods:
            config = cell.config.replace(seed=seed)
            configs += [bound_config(config), shared_config(config)]
    return configs


def _refuse_absent_methods(experiments: Sequence[Experiment], methods: set[str] | None) -> None:
    present = {cell.config.method for one in experiments for cell in one.cells}
    for method in sorted((methods or set()) - present):
        raise ConfigError(
            f"no chosen experiment has method '{method}'; they have {', '.join(sorted(present))}"
        )
