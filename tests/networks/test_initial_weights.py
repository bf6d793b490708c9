"""How networks start: the spread of every layer's first weights, by either recipe."""

from math import sqrt
from typing import get_args

import pytest
import torch
from made_images import seeded
from small_runs import engine_for, tiny
from torch import Tensor, nn

from distillmatch.config import RECIPES
from distillmatch.config.recipe import RecipeName
from distillmatch.networks import BatchNorm, Head, build_network


def spread_within(values: Tensor, bound: float) -> bool:
    """Whether many values look uniform within ± a bound, of which the deviation is a √3-th."""
    values = values.detach()
    assert values.numel() >= 400, "too few to tell"
    reaches = 0.95 * bound < float(values.abs().max()) <= bound
    # The deviation's own relative error is √(1/5n): ten of those, and never more than 15 %.
    error = min(0.15, 10 * sqrt(1 / 5 / values.numel()))
    return reaches and float(values.std()) == pytest.approx(bound / sqrt(3), rel=error)


@pytest.mark.parametrize("head", get_args(Head))
def test_uniform_weights_lie_within_the_root_of_the_inputs(head: Head) -> None:
    network = build_network("wrn-10-4", 400, head, seeded(1), initial_weights="uniform")
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 7 + 3
    for layer in convolutions:
        inputs = layer.in_channels * layer.kernel_size[0] * layer.kernel_size[1]
        assert spread_within(layer.weight, 1 / sqrt(inputs))
    assert all(norm.bias.eq(0).all() for norm in norms_of(network))
    weights = torch.cat([norm.weight.detach() for norm in norms_of(network)])
    assert spread_within(weights - 0.5, 0.5)
    network.grow(800, seeded(2))
    for name, values in network.head.slots.named_parameters():
        for some in (values[:400], values[400:]):
            assert spread_within(some, 1 / sqrt(256)), name


def norms_of(network: nn.Module) -> list[BatchNorm]:
    return [layer for layer in network.modules() if isinstance(layer, BatchNorm)]


@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_normal_weights_are_normal_by_the_outputs_of_convolutions(head: Head) -> None:
    """Drawn again number by number, in the order of the layers."""
    network = build_network("wrn-10-2", 5, head, seeded(7))
    generator = seeded(7)
    for layer in (one for one in network.modules() if isinstance(one, nn.Conv2d)):
        deviation = sqrt(2 / (layer.out_channels * layer.kernel_size[0] ** 2))
        again = torch.empty(layer.weight.shape).normal_(0, deviation, generator=generator)
        assert torch.equal(layer.weight, again)
    for linear in (one for one in network.head.modules() if isinstance(one, nn.Linear)):
        again = torch.empty(linear.weight.shape).uniform_(-(2**-3.5), 2**-3.5, generator=generator)
        assert linear is network.head.slots or torch.equal(linear.weight, again)
        assert all(bias.eq(0).all() for name, bias in linear.named_parameters() if name == "bias")
    if head != "linear":
        again = torch.empty(5, 128).normal_(0, sqrt(2 / 128), generator=generator)
    assert torch.equal(network.head.slots.weight, again)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_network_of_a_run_starts_as_its_recipe_says_and_again_the_same(
    recipe: RecipeName,
) -> None:
    uniform = recipe == "paper"
    method = engine_for(tiny(method="dm", recipe=recipe)).method
    heads: list[tuple[str, Head]] = [
        ("classifier", "linear"), ("detector", "cosine"), ("teacher", "linear")
    ]  # fmt: skip
    for name, head in heads:
        network = method.build(name, head)
        largest = network.get_parameter("backbone.blocks.2.conv2.weight").abs().max()
        assert (float(largest.detach()) <= 1 / sqrt(64 * 9)) == uniform
        assert all(norm.weight.eq(1).all() for norm in norms_of(network)) != uniform
    teachers = ("teacher", "teacher", "teacher of task 2")
    one, again, other = (method.build(name).state_dict()["head.weight"] for name in teachers)
    assert torch.equal(one, again) and not torch.equal(one, other)
