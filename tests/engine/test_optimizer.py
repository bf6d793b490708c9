"""The optimizers beside torch's, the average of weights, and what they import."""

import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from small_runs import TESTS, engine_for, tiny
from torch import Tensor, nn

from distillmatch.engine.optimizer import AdamW, Descent, LayerwiseDescent, Optimizer, WeightAverage
from distillmatch.engine.steps import Step
from distillmatch.methods import Training

Weights = dict[str, Tensor]


def stepped(make: Callable[[Sequence[nn.Parameter], Tensor], Any], clip: float | None) -> Weights:
    """Return the weights after each step; the third tensor is not used, and the rate changes."""
    generator = torch.Generator().manual_seed(1)
    weights = [nn.Parameter(torch.randn(size, generator=generator)) for size in (3, 7, 2)]
    rate = torch.tensor(0.1)
    found: Weights = {}
    optimizer = make(weights, rate)
    for step in range(4):
        for weight in weights[:2]:
            weight.grad = torch.randn(weight.shape, generator=generator)
        if clip is not None:
            nn.utils.clip_grad_norm_(weights, clip)
        optimizer.step()
        rate.fill_(0.1 / (step + 2))
        found |= {f"{step} {n}": weight.detach().clone() for n, weight in enumerate(weights)}
    return found


@pytest.mark.parametrize(
    ("momentum", "weight_decay", "clip"),
    [(0.9, 5e-4, 1.0), (0.9, 5e-4, 100.0), (0.0, 0.0, None), (None, 5e-4, 1.0), (None, 0.1, None)],
)
def test_steps_are_torchs_to_the_last_bit(
    momentum: float | None, weight_decay: float, clip: float | None
) -> None:
    """Without a momentum, of AdamW."""
    if momentum is None:
        ours = stepped(lambda w, rate: AdamW(w, rate, weight_decay, clip), None)
        theirs = stepped(
            lambda w, rate: torch.optim.AdamW(w, rate, weight_decay=weight_decay, fused=True), clip
        )
    else:
        ours = stepped(lambda w, rate: Descent(w, rate, weight_decay, clip, momentum), None)
        sgd, decay = torch.optim.SGD, weight_decay
        theirs = stepped(lambda w, r: sgd(w, r, momentum, weight_decay=decay, fused=True), clip)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def plain_lars(
    weight: list[float], gradient: list[float], velocity: list[float], rate: float, adapted: bool
) -> None:
    """One step for one tensor, with a trust of 0.02, a decay of 0.1 and a momentum of 0.9."""
    factor, decay = 1.0, 0.0
    if adapted:
        length, slope = (math.sqrt(sum(v * v for v in row)) for row in (weight, gradient))
        decay = 0.1
        factor = 0.02 * length / (slope + decay * length) if length and slope else 1.0
    for n in range(len(weight)):
        velocity[n] = 0.9 * velocity[n] + factor * (gradient[n] + decay * weight[n])
        weight[n] -= rate * velocity[n]


def test_a_step_of_lars_adapts_the_rate_of_every_matrix_and_of_no_vector() -> None:
    """A kernel, a bias, a head, weights of length 0, a gradient of length 0, one that is unused."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(4, 3, 2, 2), (4,), (5, 4), (3, 2), (2, 3), (2, 2)]
    weights = [nn.Parameter(torch.randn(s, generator=generator).double()) for s in shapes]
    weights[3].data.zero_()
    rate = torch.tensor(0.5, dtype=torch.float64)
    optimizer = LayerwiseDescent(
        weights, rate, 0.1, momentum=0.9, trust=0.02, head=[weights[2]], head_rate=0.3
    )
    slow = [weight.detach().flatten().tolist() for weight in weights]
    velocities = [[0.0] * len(row) for row in slow]
    for step in range(3):
        rate.fill_(0.5 / (step + 1))
        for number, weight in enumerate(weights[:5]):
            weight.grad = torch.randn(weight.shape, generator=generator).double() * (number != 4)
            own = float(rate) * (0.3 if number == 2 else 1.0)
            row = weight.grad.flatten().tolist()
            plain_lars(slow[number], row, velocities[number], own, weight.ndim > 1)
        optimizer.step()
    for weight, row in zip(weights, slow, strict=True):
        assert weight.detach().flatten().tolist() == pytest.approx(row, rel=1e-12)


def lars(parameters: Sequence[nn.Parameter], rate: Tensor) -> LayerwiseDescent:
    return LayerwiseDescent(parameters, rate, 1e-4, momentum=0.9)


@pytest.mark.parametrize("kind", [Descent, AdamW, lars])
def test_the_state_of_an_optimizer_is_all_that_the_next_step_needs(kind: Any) -> None:
    gradients = torch.randn(3, 5, generator=torch.Generator().manual_seed(2))

    def take(optimizer: Optimizer, some: Tensor) -> Tensor:
        (weight,) = optimizer.parameters
        for gradient in some:
            weight.grad = gradient.clone()
            optimizer.step()
        optimizer.forget_gradients()
        assert weight.grad is None
        return weight.detach().clone()

    def fresh(start: Tensor) -> Optimizer:
        made: Optimizer = kind([nn.Parameter(start.clone())], torch.tensor(0.1))
        return made

    whole = take(fresh(torch.ones(5)), gradients)
    first = fresh(torch.ones(5))
    second = fresh(take(first, gradients[:2]))
    for into, value in zip(second.state, first.state, strict=True):
        into.copy_(value)
    assert torch.equal(take(second, gradients[2:]), whole)


def copied(network: nn.Module) -> Weights:
    return {name: value.double().clone() for name, value in network.state_dict().items()}


def slow_average(states: list[Weights], decay: float) -> Weights:
    shares = [decay ** (len(states) - 1 - step) for step in range(len(states))]
    pairs = list(zip(shares, states, strict=True))
    return {key: sum(share * one[key] for share, one in pairs) / sum(shares) for key in states[0]}  # type: ignore[misc]


def assert_near(found: Weights, expected: Weights) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("decay", [0.1, 0.9, 0.999])
def test_the_average_counts_later_steps_more_and_the_beginning_not_at_all(decay: float) -> None:
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average, states = WeightAverage(network, decay), []
    for seed in range(7):
        generator = torch.Generator().manual_seed(seed)
        for value in network.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.randn(value.shape, generator=generator))
        average.update()
        states.append(copied(network))
    average.put_in_place()
    assert_near(copied(network), slow_average(states, decay))


@pytest.mark.parametrize(
    ("method", "coreset", "expected"),
    [
        ("dm", 6, ["classifier", "fine-tuning", "detector", "classifier", "fine-tuning"]),
        ("gd", 0, ["classifier", "teacher", "classifier"]),
        ("offline", 0, ["classifier", "classifier"]),
    ],
)
def test_a_task_ends_with_the_average_of_the_classifiers_weights_and_teaches_the_next_with_it(
    method: str, coreset: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By recipe as-written fine-tuning changes the head alone, not the statistics."""
    given = {"epochs": 4, "task_sizes": (3, 3), "weight_averaging": 0.8, "recipe": "as-written"}
    engine = engine_for(tiny(**given, method=method, coreset=coreset))
    steps: dict[int, list[Weights]] = {}
    ends: dict[int, tuple[str, Weights]] = {}
    take, train = Step.__call__, engine.trainer._train

    def step(self: Step, batch: Any) -> Tensor:
        loss = take(self, batch)
        steps.setdefault(len(ends), []).append(copied(self.training.network))
        return loss

    def training(one: Training, *rest: Any) -> None:
        train(one, *rest)
        ends[len(ends)] = one.name, copied(one.network)

    monkeypatch.setattr(Step, "__call__", step)
    engine.trainer._train = training  # type: ignore[method-assign,assignment]
    list(engine.run())
    assert [name for name, _ in ends.values()] == expected
    for number, (name, weights) in ends.items():
        last = steps[number][-1]
        changed = [key for key in last if not torch.equal(weights[key], last[key])]
        if name in ("detector", "teacher"):
            assert not changed
            continue
        assert_near(weights, slow_average(steps[number], 0.8))
        of_head = [key for key in changed if key.startswith("head")]
        assert of_head and (changed == of_head) == (name == "fine-tuning")
    if "past" in engine.method.networks:
        kept, last = copied(engine.method.networks["past"]), copied(engine.method.classifier)
        assert all(torch.equal(kept[key], last[key]) for key in kept)


def test_a_run_does_not_import_torchs_compiler() -> None:
    """It takes a second or more, of every process that learns."""
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(TESTS)!r})\n"
        "from small_runs import engine_for, tiny\n"
        "for optimizer in ('sgd', 'adamw'):\n"
        "    config = tiny(method='dm', weight_averaging=0.9, optimizer=optimizer, epochs=1)\n"
        "    assert len(list(engine_for(config).run())) > 1\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
