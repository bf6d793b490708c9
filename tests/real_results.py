"""Results of small runs that were really run, for the ledger and the commands that read it."""

from functools import cache
from typing import Any

from conftest import make_dataset
from small_runs import tiny

from distillmatch.runs import bound_of, run

Result = dict[str, Any]
THREE_TASKS: dict[str, Any] = {"epochs": 1, "task_sizes": None, "tasks": 3}


def made(bound: Result | None = None, **options: Any) -> Result:
    """Run a configuration of three tasks, against a bound if one is given."""
    dataset = make_dataset(classes=6, per_class=10, test_per_class=8, parents=3, noise=True)
    config = tiny(**{**THREE_TASKS, **options})
    return run(config, dataset=dataset, bound=None if bound is None else bound_of(bound))


@cache
def bound_result() -> Result:
    return made(method="offline")


@cache
def base_result() -> Result:
    return made(bound_result(), method="base", coreset=6)
