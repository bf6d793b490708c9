"""The truth about unlabeled images: out of a method's reach, and without effect on it."""

import gc
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_dataset
from numpy.typing import NDArray
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.engine import Engine, TaskOutcome
from distillmatch.engine.data import TaskData
from distillmatch.methods import Batch, TaskInfo, Training, method_names
from distillmatch.runs import run
from distillmatch.sources import Dataset, Part
from distillmatch.streams import Stream, build_stream

LEADS_TO_TRUTH = (Dataset, Part, Stream, Engine, TaskOutcome)
ORACLE: dict[str, Any] = {"method": "worldmatch", "options": {"accept": "truth"}}
CAPTURED = ("__closure__", "__defaults__", "__kwdefaults__", "__dict__")


def config_of(**options: Any) -> RunConfig:
    given = {"network": "wrn-10-1", "epochs": 2, "tasks": 3, "batch": 8, "unlabeled_batch": 8}
    return RunConfig(**{**given, **options, "device": "cpu"})


def six_classes() -> Dataset:
    return make_dataset(classes=6, per_class=15, parents=3, noise=True)


def referents(thing: object) -> list[object]:
    """What an object holds; of a function, what it captured and not the module it stands in."""
    if isinstance(thing, types.FunctionType):
        return [getattr(thing, name) for name in CAPTURED]
    held = gc.get_referents(thing)
    if isinstance(thing, np.ndarray):
        held.append(thing.base)
    if isinstance(thing, Tensor):
        held += [thing._base, thing.grad if thing.is_leaf else None]
    return held


def reachable(start: object) -> list[tuple[object, str]]:
    """Everything that can be reached from an object, each with the types on the way to it."""
    found: dict[int, tuple[object, str]] = {}
    open_ends = [(start, "")]
    while open_ends:
        thing, way = open_ends.pop()
        skipped = isinstance(thing, type | types.ModuleType | types.CodeType)
        if thing is None or skipped or id(thing) in found:
            continue
        way = f"{way} > {type(thing).__name__}"
        found[id(thing)] = thing, way
        open_ends += [(held, way) for held in referents(thing)]
    return list(found.values())


def numbers_in(thing: object) -> NDArray[Any] | None:
    """The numbers that an array, a tensor or a plain sequence of numbers holds."""
    if isinstance(thing, Tensor):
        return thing.detach().numpy()
    if isinstance(thing, np.ndarray):
        return thing
    if isinstance(thing, list | tuple) and thing and isinstance(thing[0], int | float):
        return np.array(thing)
    return None


class Watched:
    """A run that keeps all that its method is given, and its trainings; `look` sees every pause."""

    def __init__(self, config: RunConfig, look: Callable[["Watched"], None]) -> None:
        self.dataset = six_classes()
        self.stream = build_stream(self.dataset, config)
        self.engine = Engine(config, self.dataset, self.stream, pause=lambda: look(self))
        self.given = given = list[object]()
        method, keep = self.engine.method, _keeper(given)
        trainings = keep(method.trainings)
        for name in ("end_task", "logits", "familiarity", "judge"):
            setattr(method, name, keep(getattr(method, name)))
        hooks = ("loss", "frozen_labeled", "frozen_unlabeled", "before", "after")

        def kept_trainings(task: TaskInfo) -> list[Training]:
            made = trainings(task)
            given.extend(made)
            return [
                replace(one, **{hook: keep(getattr(one, hook)) for hook in hooks}) for one in made
            ]

        method.trainings = kept_trainings  # type: ignore[method-assign]

    def truths(self) -> Iterator[NDArray[np.int64]]:
        """The true labels of the tasks' unlabeled images, as slots and as the source has them."""
        for number, task in enumerate(self.stream.tasks):
            yield self.stream.true_slots_of_unlabeled(number)
            yield self.dataset.train.labels[task.unlabeled]
        yield self.dataset.train.labels

    def in_reach(self) -> list[tuple[object, str]]:
        return reachable([self.engine.method, self.given])


def _keeper(given: list[object]) -> Callable[[Any], Any]:
    """Return a wrapper that keeps the arguments of calls; it holds on to nothing else."""

    def keep(inner: Any) -> Any:
        def called(*arguments: object) -> object:
            given.extend(arguments)
            return inner(*arguments)

        return called if inner is not None else None

    return keep


def ways_to_the_truth(run_: Watched) -> list[str]:
    truths, train = list(run_.truths()), run_.dataset.train
    ways = []
    for thing, way in run_.in_reach():
        if isinstance(thing, LEADS_TO_TRUTH):
            ways.append(way)
        numbers = numbers_in(thing)
        if numbers is None:
            continue
        tells = any(
            numbers.size == truth.size and np.array_equal(numbers.ravel(), truth)
            for truth in truths
        )
        borrowed = np.shares_memory(numbers, train.labels) or np.shares_memory(
            numbers, train.images
        )
        if tells or borrowed:
            ways.append(way)
    return ways


@pytest.mark.parametrize(
    "options",
    [
        {"method": "dm"},
        {"method": "dm", "recipe": "as-written", "coreset": 12},
        {"method": "worldmatch", "coreset": 12},
        {"method": "worldmatch", "options": {"accept": "newness"}},
        {"method": "gd"},
        {"method": "gd", "coreset": 12},
    ],
)
def test_the_truth_cannot_be_reached_from_a_method_in_the_middle_of_a_run(
    options: dict[str, Any],
) -> None:
    looks: list[int] = []

    def look(watched: Watched) -> None:
        looks.append(watched.engine.underway.task)
        assert not ways_to_the_truth(watched)

    watched = Watched(config_of(**options), look)
    list(watched.engine.run())
    look(watched)
    assert set(looks) == {0, 1, 2, 3}
    kinds = {type(thing) for thing, _ in watched.in_reach()}
    assert {Batch, TaskData, TaskInfo, Training, RunConfig} <= kinds, "the walk went everywhere"
    assert any(thing is watched.engine.method.classifier for thing, _ in watched.in_reach())
    batches = [thing for thing in watched.given if isinstance(thing, Batch)]
    assert any(batch.unlabeled_outputs is not None for batch in batches)
    for batch in batches:
        assert batch.truth is None
        said = [one for one in batch.unlabeled_outputs or () if one is not None]
        # Scores, or a class that a network names: one row an image, and never the truth.
        assert all(len(one) == len(said[0]) for one in said)
    handed = [thing for thing in watched.given if isinstance(thing, TaskData)]
    assert handed and all(data.truth is None for data in handed)


def test_the_walk_finds_the_truth_that_the_oracle_is_given() -> None:
    """The same search, where there is something to find."""
    watched = Watched(config_of(**ORACLE), lambda _: None)
    list(watched.engine.run())
    handed = [thing for thing in watched.given if isinstance(thing, TaskData)]
    assert {data.info.number for data in handed} == {0, 1, 2}
    for data in handed:
        expected = watched.stream.true_slots_of_unlabeled(data.info.number)
        assert data.truth is not None and data.truth.tolist() == expected.tolist()
    assert any(way.endswith("> Tensor") for way in ways_to_the_truth(watched))
    assert run(config_of(**ORACLE, epochs=1), dataset=six_classes())["uses_truth"]
    usual = run(config_of(method="worldmatch", epochs=1), dataset=six_classes())
    assert not usual["uses_truth"]


def learned(config: RunConfig, poisoned: bool) -> tuple[Engine, list[TaskOutcome]]:
    dataset = six_classes()
    stream = build_stream(dataset, config)
    if poisoned:
        assert dataset.fingerprint == stream.fingerprint, "known before the labels change"
        hidden = np.concatenate([task.unlabeled for task in stream.tasks])
        dataset.train.labels[hidden] = (dataset.train.labels[hidden] + 1) % 6
    engine = Engine(config, dataset, stream)
    return engine, list(engine.run())


def equal_to_the_bit(one: Engine, other: Engine) -> bool:
    mine, others = one.method, other.method
    assert mine.networks.keys() == others.networks.keys()
    states = [
        (value, others.networks[name].state_dict()[key])
        for name, network in mine.networks.items()
        for key, value in network.state_dict().items()
    ]
    return mine.values == others.values and all(torch.equal(a, b) for a, b in states)


@pytest.mark.parametrize(
    "options",
    [
        *({"method": name} for name in method_names()),
        {"method": "gd", "coreset": 12},
        {"method": "dm", "coreset": 12},
        {"method": "dm", "recipe": "as-written"},
        {"method": "worldmatch", "options": {"accept": "newness"}, "coreset": 12},
    ],
    ids=lambda options: " ".join(str(value) for value in options.values()),
)
def test_poisoned_truth_changes_no_bit_of_what_is_learned(options: dict[str, Any]) -> None:
    config = config_of(**options, tasks=2)
    (clean, outcomes), (poisoned, others) = learned(config, False), learned(config, True)
    assert equal_to_the_bit(clean, poisoned)
    for one, other in zip(outcomes, others, strict=True):
        assert np.array_equal(one.logits, other.logits) and one.losses == other.losses
        assert one.values == other.values
        if one.judgement is not None and other.judgement is not None:
            assert np.array_equal(one.judgement.accepted, other.judgement.accepted)
            assert not np.array_equal(one.truth, other.truth)


def test_poisoned_truth_changes_what_the_oracle_learns() -> None:
    """The same poison, where it must work."""
    config = config_of(**ORACLE, tasks=2)
    assert not equal_to_the_bit(learned(config, False)[0], learned(config, True)[0])
