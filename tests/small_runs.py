"""Small runs on made-up images: a data set of six classes, configurations, and results."""

import contextlib
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from conftest import make_dataset
from torch import Tensor, nn

from distillmatch.config import RunConfig, StreamConfig
from distillmatch.engine import Engine, TaskOutcome
from distillmatch.engine.optimizer import Descent
from distillmatch.errors import SourceError
from distillmatch.runs import bound_of, run
from distillmatch.sources import Dataset
from distillmatch.streams import build_stream

TESTS = Path(__file__).parent
ROOT = TESTS.parent
TINY: dict[str, Any] = {
    "network": "wrn-10-1",
    "epochs": 2,
    "task_sizes": (1, 2, 3),
    "batch": 8,
    "unlabeled_batch": 8,
    "device": "cpu",
}
SOURCE = "small_runs:six_classes"
"""The data set's name, for processes of their own."""
COMMON: dict[str, Any] = {
    **{key: value for key, value in TINY.items() if key != "task_sizes"},
    **{"source": SOURCE, "tasks": 2, "epochs": 1},
}
Result = dict[str, Any]
PYTHONPATH = os.pathsep.join(
    filter(None, (str(TESTS), str(TESTS / "suite"), os.environ.get("PYTHONPATH")))
)
"""What processes of their own need to find the sources of tests, and the package that is tested."""
SIGNALS = "TEST_SIGNALS"
"""The variable that names a folder of planned signals."""


def tiny(**options: Any) -> RunConfig:
    return RunConfig(**{**TINY, **options})


def six_classes(config: StreamConfig | None = None) -> Dataset:
    _arm()
    return make_dataset(classes=6, per_class=10, parents=3, noise=True)


def plan_signals(folder: Path, steps: int, *numbers: int, parent: bool = False) -> None:
    """Let the next process that loads the data signal itself, or its parent, in that many steps.

    So a test does not depend on how fast the machine is. Each plan is for one process.
    """
    folder.mkdir(exist_ok=True)
    number = len(list(folder.iterdir()))
    words = [steps, int(parent), *map(int, numbers)]
    (folder / f"{number:03d}").write_text(" ".join(map(str, words)))


def _arm() -> None:
    folder = Path(os.environ.get(SIGNALS, "/nowhere"))
    for plan in sorted(folder.glob("[0-9]*")) if folder.is_dir() else ():
        if not plan.suffix:
            with contextlib.suppress(FileNotFoundError):
                _signal_in(*map(int, plan.rename(plan.with_suffix(".taken")).read_text().split()))
                return


def _signal_in(steps: int, parent: int, *numbers: int) -> None:
    inner, left = Descent.step, steps

    def step(optimizer: Descent) -> None:
        nonlocal left
        inner(optimizer)
        left -= 1
        if left == 0:
            for number in numbers:
                os.kill(os.getppid() if parent else os.getpid(), number)

    Descent.step = step  # type: ignore[method-assign, assignment]


def engine_for(config: RunConfig, dataset: Dataset | None = None) -> Engine:
    dataset = dataset or six_classes()
    return Engine(config, dataset, build_stream(dataset, config))


def learned(config: RunConfig) -> tuple[list[TaskOutcome], dict[str, Tensor]]:
    """Run a configuration; return what came of the tasks, and all weights at the end."""
    engine = engine_for(config)
    outcomes = list(engine.run())
    weights = {
        f"{name}.{key}": value.clone()
        for name, network in engine.method.networks.items()
        for key, value in network.state_dict().items()
    }
    return outcomes, weights


def same_weights(one: dict[str, Tensor], other: dict[str, Tensor], prefix: str = "") -> bool:
    keys = [key for key in one if key.startswith(prefix)]
    return all(torch.equal(one[key], other[key]) for key in keys)


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without what another run of the same configuration may have otherwise."""
    tasks = [{**task, "seconds": sorted(task["seconds"])} for task in result["tasks"]]
    kept = {**result, "tasks": tasks, "seconds": sorted(result["seconds"])}
    return {key: value for key, value in kept.items() if key != "commit"}


def as_words(config: dict[str, Any]) -> list[str]:
    """Return the options of a command line that give a configuration; its method's go flat."""
    words = []
    flat = {**config, **config.get("options", {})}
    for key, value in flat.items():
        if key == "options" or value is None:
            continue
        listed = value if isinstance(value, list | tuple) else [value]
        said = [str(one).lower() if isinstance(one, bool) else str(one) for one in listed]
        words += [f"--{key.replace('_', '-')}", *said]
    return words


def smallest_network() -> nn.Module:
    """Return a backbone of a few hundred bytes, for state that is kept in the repository."""
    layers = (nn.Conv2d(3, 4, 4, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*layers, nn.Flatten())


def broken(config: StreamConfig) -> Dataset:
    raise SourceError("there are no images here")


def made(bound: Result | None = None, **options: Any) -> Result:
    """Run a configuration of three tasks, against a bound if one is given."""
    dataset = make_dataset(classes=6, per_class=10, test_per_class=8, parents=3, noise=True)
    config = tiny(**{"epochs": 1, "task_sizes": None, "tasks": 3, **options})
    return run(config, dataset=dataset, bound=None if bound is None else bound_of(bound))


@cache
def bound_result() -> Result:
    return made(method="offline")


@cache
def base_result() -> Result:
    return made(bound_result(), method="base", coreset=6)
