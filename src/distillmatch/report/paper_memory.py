"""What unlabelled images are worth in stored ones, by what Base reaches with so many of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from distillmatch.metrics import equivalent_coreset, mean_and_deviation, memory_saving
from distillmatch.report.comparison import Result, metric_of
from distillmatch.sources.shapes import TRAIN_PER_CLASS
from distillmatch.suite.ledger import config_of

if TYPE_CHECKING:
    from distillmatch.report.paper_tables import Record

MEMORY = ("equivalent_coreset", "memory_saving")
IMAGES_PER_CLASS = {"cifar100": 500, "tiny-imagenet": 500, "shapes": TRAIN_PER_CLASS}
Budget = list[tuple[int, float]]
"""Coreset sizes, the smallest first, and the Ω of Base with each."""


def base_budget(records: "Iterable[Record]") -> Budget:
    """Return the Ω of Base at each coreset size that an experiment has and that was run."""
    found: dict[int, float] = {}
    for record in records:
        omegas = [metric_of(result, "omega") for result in record.results]
        known = [value for value in omegas if value is not None]
        if record.method == "base" and known:
            found[record.cell.config.coreset] = mean_and_deviation(known)[0]
    return sorted(found.items())


def worth_in_stored(result: Result, metric: str, budget: Budget) -> tuple[float | None, bool]:
    """Return one of the figures of `MEMORY` for a run, and whether it is only known to be larger.

    It is where Base reaches less than the run with every coreset that was measured; the figure is
    then that of the largest one. With a single size there is nothing to measure by.
    """
    reached = metric_of(result, "omega")
    if reached is None or len(budget) < 2:
        return None, False
    stored = equivalent_coreset([size for size, _ in budget], [y for _, y in budget], reached)
    beyond = stored is None
    if stored is None:
        stored = float(budget[-1][0])
    if metric == "memory_saving":
        shown_in_a_task = unlabeled_per_task(result)
        if shown_in_a_task is None:
            return None, False
        stored = memory_saving(stored, shown_in_a_task)
    return stored, beyond


def unlabeled_per_task(result: Result) -> int | None:
    """Return how many unlabelled images a task shows on average; `None` for unknown sources."""
    config = config_of(result, Path("result"))
    images = IMAGES_PER_CLASS.get(config.source)
    if images is None:
        return None
    labeled = config.labels_per_class or round((config.label_fraction or 0.2) * images)
    count = (images - labeled) * len(result["classes"]) // len(result["task_sizes"])
    return count if config.unlabeled_per_task is None else min(count, config.unlabeled_per_task)
