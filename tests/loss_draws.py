"""Random logits, masks and sizes for the tests of losses, and how their values are compared."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

generated = settings(deadline=None, max_examples=60)
seeds = st.integers(0, 2**31)
batches = st.integers(1, 6)
temperatures = st.sampled_from([1.0, 2.0, 0.5, 7.0])


def normal(*shape: int, seed: int, spread: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(shape, generator=generator, dtype=torch.float64)


def some(count: int, seed: int) -> Tensor:
    """A mask in which none, some or all are chosen, each often enough."""
    generator = torch.Generator().manual_seed(seed)
    chance = (0.0, 0.5, 1.0)[seed % 3]
    return torch.rand(count, generator=generator) < chance


def near(value: Tensor, expected: float) -> bool:
    return float(value.detach()) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def gradient(loss: Tensor, of: Tensor) -> Tensor | None:
    return torch.autograd.grad(loss, of, allow_unused=True, retain_graph=True)[0]
