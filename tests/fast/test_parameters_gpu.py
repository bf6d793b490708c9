"""Kernels over all parameters, and normalization launched in two ways."""

from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import torch
from normalized import normalize, normalize_backward
from torch import Tensor, nn

from distillmatch.concurrency import shared_device
from distillmatch.engine.optimizer import Descent
from distillmatch.fast import parameters
from distillmatch.fast.batch_norm import Shape
from distillmatch.networks import BatchNorm, StatisticsGroups, build_network

pytestmark = pytest.mark.gpu


def give_gradients(weights: Sequence[Tensor], step: int) -> None:
    generator = torch.Generator("cuda").manual_seed(step)
    for weight in weights:
        drawn = torch.randn(weight.shape, device="cuda", generator=generator)
        weight.grad = torch.empty_like(weight).copy_(drawn)


@pytest.mark.parametrize("clip", [None, 1.0, 10_000.0])
def test_a_step_of_descent_is_torchs(clip: float | None) -> None:
    found = []
    for ours in (True, False):
        network = build_network("wrn-28-2", 100, generator=torch.Generator().manual_seed(1)).cuda()
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        weights = list(network.parameters())
        rate = torch.tensor(0.1, device="cuda")
        plain = torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=5e-4)
        fused = Descent(weights, rate, 5e-4, clip, 0.9)
        for step in range(4):
            give_gradients(weights, step)
            if clip is not None and not ours:
                nn.utils.clip_grad_norm_(weights, clip)
            (fused if ours else plain).step()
            if step == 1:
                rate.fill_(0.01)
                plain.param_groups[0]["lr"] = 0.01
        if ours:
            gradients = [one.grad for one in weights if one.grad is not None]
            used = parameters.descends(weights, gradients, fused.state)
            assert used, "the kernel was not used"
        found.append([weight.detach().clone() for weight in weights])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_more_tensors_than_a_launch_takes_are_rounded_as_torch_rounds() -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    sizes = [2, 6, 4096, 4098, 100_000, *[10] * 120]
    numbers = [torch.randn(size, device="cuda", generator=generator) for size in sizes]
    numbers = [number.view(-1, 1, 1, 1) for number in numbers]
    rounded = parameters.round_to_bfloat16(numbers)
    assert parameters.rounds(numbers, rounded)
    for number, to in zip(numbers, rounded, strict=True):
        assert torch.equal(to, number.bfloat16())


@pytest.mark.parametrize(
    ("channels", "side", "count"), [(32, 32, 320), (64, 16, 320), (128, 8, 64)]
)
def test_normalization_is_the_same_to_the_bit_alone_and_beside_other_runs(
    channels: int, side: int, count: int
) -> None:
    found = []
    for shared in (False, True):
        generator = torch.Generator("cuda").manual_seed(1)

        def drawn(generator: torch.Generator = generator) -> Tensor:
            maps = torch.randn(count, channels, side, side, device="cuda", generator=generator)
            return maps.bfloat16().to(memory_format=torch.channels_last)

        norm, maps, shortcut = BatchNorm(channels).cuda(), drawn(), drawn()
        norm.groups = StatisticsGroups((count // 2, count // 4, count // 4), 2)
        with shared_device() if shared else nullcontext():
            made = normalize(maps, shortcut, norm)
            gradients = normalize_backward(drawn(), drawn(), made, norm)
            if channels == 32:
                shape = Shape.of(maps, norm.groups.sizes)
                assert shape.is_cooperative(maps.device) is not shared
        found.append([*made[:2], norm.running_mean, norm.running_var, *gradients])
    for alone, beside in zip(*found, strict=True):
        assert torch.equal(alone, beside)
