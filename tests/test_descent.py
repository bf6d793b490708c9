"""The optimizer beside torch's, and what it brings into a process."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from distillmatch.engine.descent import Descent


@pytest.mark.parametrize(
    ("momentum", "weight_decay", "clip"),
    [(0.9, 5e-4, 1.0), (0.9, 5e-4, 100.0), (0.0, 0.0, None), (0.5, 0.1, None)],
)
def test_steps_are_torchs_to_the_last_bit(
    momentum: float, weight_decay: float, clip: float | None
) -> None:
    found = []
    for ours in (True, False):
        generator = torch.Generator().manual_seed(1)
        weights = [nn.Parameter(torch.randn(size, generator=generator)) for size in (3, 7, 2)]
        rate = torch.tensor(0.1)
        descent = Descent(weights, rate, momentum, weight_decay, clip)
        plain = torch.optim.SGD(weights, rate, momentum, weight_decay=weight_decay, fused=True)
        for step in range(4):
            for weight in weights[:2]:  # the third is not used
                weight.grad = torch.randn(weight.shape, generator=generator)
            if clip is not None and not ours:
                nn.utils.clip_grad_norm_(weights, clip)
            (descent if ours else plain).step()
            rate.fill_(0.1 / (step + 2))
        found.append([weight.detach().clone() for weight in weights])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_gradients_are_let_go() -> None:
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    Descent([weight], torch.tensor(0.1)).forget_gradients()
    assert weight.grad is None


def test_a_run_does_not_import_torchs_compiler() -> None:
    """It takes a second or more, of every process that learns."""
    script = (
        "import sys\n"
        "sys.path.insert(0, 'tests')\n"
        "from test_engine import engine_for, tiny\n"
        "outcomes = list(engine_for(tiny(method='dm', weight_averaging=0.9)).run())\n"
        "assert len(outcomes) > 1 and 'torch._dynamo' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
