"""The optimizers beside torch's, and what they bring into a process."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from small_runs import TESTS
from torch import Tensor, nn

from distillmatch.engine.optimizer import AdamW, Descent

Weights = list[nn.Parameter]


def stepped(make: Callable[[Weights, Tensor], Any], clip: float | None) -> list[list[Tensor]]:
    """Return the weights after each step; the third tensor is not used, and the rate changes."""
    generator = torch.Generator().manual_seed(1)
    weights = [nn.Parameter(torch.randn(size, generator=generator)) for size in (3, 7, 2)]
    rate = torch.tensor(0.1)
    optimizer, found = make(weights, rate), []
    for step in range(4):
        for weight in weights[:2]:
            weight.grad = torch.randn(weight.shape, generator=generator)
        if clip is not None:
            nn.utils.clip_grad_norm_(weights, clip)
        optimizer.step()
        rate.fill_(0.1 / (step + 2))
        found.append([weight.detach().clone() for weight in weights])
    return found


def assert_same(ours: Sequence[Sequence[Tensor]], theirs: Sequence[Sequence[Tensor]]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(ours[0][0], ours[-1][0])


@pytest.mark.parametrize(
    ("momentum", "weight_decay", "clip"),
    [(0.9, 5e-4, 1.0), (0.9, 5e-4, 100.0), (0.0, 0.0, None), (0.5, 0.1, None)],
)
def test_steps_of_descent_are_torchs_to_the_last_bit(
    momentum: float, weight_decay: float, clip: float | None
) -> None:
    def ours(weights: Weights, rate: Tensor) -> Descent:
        return Descent(weights, rate, momentum, weight_decay, clip)

    def theirs(weights: Weights, rate: Tensor) -> torch.optim.SGD:
        return torch.optim.SGD(weights, rate, momentum, weight_decay=weight_decay, fused=True)

    assert_same(stepped(ours, None), stepped(theirs, clip))


@pytest.mark.parametrize(("weight_decay", "clip"), [(0.0, None), (5e-4, 1.0), (0.1, 100.0)])
def test_steps_of_adamw_are_torchs_to_the_last_bit(weight_decay: float, clip: float | None) -> None:
    def ours(weights: Weights, rate: Tensor) -> AdamW:
        return AdamW(weights, rate, weight_decay, clip)

    def theirs(weights: Weights, rate: Tensor) -> torch.optim.AdamW:
        return torch.optim.AdamW(weights, rate, weight_decay=weight_decay, fused=True)

    assert_same(stepped(ours, None), stepped(theirs, clip))


@pytest.mark.parametrize("kind", [Descent, AdamW])
def test_the_state_of_an_optimizer_is_all_that_the_next_step_needs(
    kind: type[Descent] | type[AdamW],
) -> None:
    generator = torch.Generator().manual_seed(2)
    gradients = torch.randn(3, 5, generator=generator)

    def take(optimizer: Descent | AdamW, some: Tensor) -> Tensor:
        (weight,) = optimizer.parameters
        for gradient in some:
            weight.grad = gradient.clone()
            optimizer.step()
        return weight.detach().clone()

    def fresh(start: Tensor) -> Descent | AdamW:
        weights, rate = [nn.Parameter(start.clone())], torch.tensor(0.1)
        return Descent(weights, rate, 0.9) if kind is Descent else AdamW(weights, rate)

    whole = take(fresh(torch.ones(5)), gradients)
    first = fresh(torch.ones(5))
    second = fresh(take(first, gradients[:2]))
    for into, value in zip(second.state, first.state, strict=True):
        into.copy_(value)
    assert torch.equal(take(second, gradients[2:]), whole)


@pytest.mark.parametrize("kind", [Descent, AdamW])
def test_gradients_are_dropped(kind: type[Descent] | type[AdamW]) -> None:
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    kind([weight], torch.tensor(0.1)).forget_gradients()
    assert weight.grad is None


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_run_does_not_import_torchs_compiler(optimizer: str) -> None:
    """It takes a second or more, of every process that learns."""
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(TESTS)!r})\n"
        "from small_runs import engine_for, tiny\n"
        f"config = tiny(method='dm', weight_averaging=0.9, optimizer={optimizer!r})\n"
        "outcomes = list(engine_for(config).run())\n"
        "assert len(outcomes) > 1 and 'torch._dynamo' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
