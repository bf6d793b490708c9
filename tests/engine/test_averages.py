"""The average of weights over steps, and the classifier that is the average."""

from typing import Any

import pytest
import torch
from small_runs import engine_for, tiny
from torch import Tensor, nn

from distillmatch.engine import Engine
from distillmatch.engine.optimizer import WeightAverage
from distillmatch.engine.steps import Step
from distillmatch.methods import Training

Weights = dict[str, Tensor]


def copied(network: nn.Module) -> Weights:
    return {name: value.double().clone() for name, value in network.state_dict().items()}


def slow_average(states: list[Weights], decay: float) -> Weights:
    shares = [decay ** (len(states) - 1 - step) for step in range(len(states))]
    return {
        name: torch.stack([share * one[name] for share, one in zip(shares, states, strict=True)])
        .sum(0)
        .div(sum(shares))
        for name in states[0]
    }


def assert_near(found: Weights, expected: Weights) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("decay", [0.1, 0.9, 0.999])
def test_the_average_counts_later_steps_more_and_the_beginning_not_at_all(decay: float) -> None:
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average, states = WeightAverage(network, decay), []
    generator = torch.Generator().manual_seed(1)
    for _ in range(7):
        for value in network.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.randn(value.shape, generator=generator))
        average.update()
        states.append(copied(network))
    average.put_in_place()
    assert_near(copied(network), slow_average(states, decay))


def averaging_engine(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Engine, Any, Any]:
    """An engine, and by training the weights after every step and those it ended with."""
    given = {"epochs": 4, "task_sizes": (3, 3), "weight_averaging": 0.8, **options}
    engine = engine_for(tiny(**given))
    steps: dict[int, list[Weights]] = {}
    ends: dict[int, tuple[Training, Weights]] = {}
    take, train = Step.__call__, engine.trainer._train

    def step(self: Step, batch: Any) -> Tensor:
        loss = take(self, batch)
        steps.setdefault(len(ends), []).append(copied(self.training.network))
        return loss

    def training(one: Training, *rest: Any) -> None:
        train(one, *rest)
        ends[len(ends)] = one, copied(one.network)

    monkeypatch.setattr(Step, "__call__", step)
    engine.trainer._train = training  # type: ignore[method-assign,assignment]
    return engine, steps, ends


@pytest.mark.parametrize(
    ("method", "coreset", "expected"),
    [
        ("dm", 0, ["classifier", "detector", "classifier"]),
        ("dm", 6, ["classifier", "fine-tuning", "detector", "classifier", "fine-tuning"]),
        ("gd", 0, ["classifier", "teacher", "classifier"]),
        ("base", 6, ["classifier", "classifier"]),
        ("offline", 0, ["classifier", "classifier"]),
    ],
)
def test_a_task_ends_with_the_average_of_the_classifiers_weights(
    method: str, coreset: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By recipe as-written fine-tuning changes the head alone, not the statistics."""
    given = {"method": method, "coreset": coreset, "recipe": "as-written"}
    engine, steps, ends = averaging_engine(monkeypatch, **given)
    list(engine.run())
    assert [training.name for training, _ in ends.values()] == expected
    for number, (training, weights) in ends.items():
        last = steps[number][-1]
        if training.name in ("detector", "teacher"):
            assert all(torch.equal(weights[name], last[name]) for name in last)
            continue
        assert_near(weights, slow_average(steps[number], 0.8))
        changed = [name for name in last if not torch.equal(weights[name], last[name])]
        of_head = [name for name in changed if name.startswith("head")]
        assert of_head and (changed == of_head) == (training.name == "fine-tuning")


def test_the_averaged_classifier_is_tested_and_teaches_the_next_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, _, ends = averaging_engine(monkeypatch, options={"pseudo_labels": False})
    next(engine.run())
    _, weights = ends[0]
    for name in ("classifier", "past"):
        kept = copied(engine.method.networks[name])
        assert all(torch.equal(weights[key], kept[key]) for key in weights)


def test_without_averaging_no_average_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(WeightAverage, "__init__", never)
    engine, _, _ = averaging_engine(monkeypatch, weight_averaging=None, epochs=1)
    assert len(list(engine.run())) == 2
