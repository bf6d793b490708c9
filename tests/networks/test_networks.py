"""Networks: sizes, weights, growth, and ResNet-18 against its layers written out."""

from math import sqrt
from typing import get_args

import pytest
import torch
from made_images import images, seeded
from plain import normalized
from torch import Tensor, nn
from torch.nn import functional

from distillmatch.errors import ConfigError
from distillmatch.networks import Detector, Head, build_network
from distillmatch.networks.names import parse_network


def test_parameters_are_those_of_the_paper() -> None:
    network = build_network("wrn-28-2", 100)
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_479_220


@pytest.mark.parametrize("size", [8, 33])
def test_any_image_size_gives_one_logit_a_class(size: int) -> None:
    network = build_network("wrn-10-1", 7)
    assert network(images(2, size)).shape == (2, 7)
    assert network.features(images(2, size)).shape == (2, network.feature_count) == (2, 64)


@pytest.mark.parametrize("name", ["wrn-10-1", "examples.own_network:SmallNet"])
@pytest.mark.parametrize("head", get_args(Head))
def test_weights_depend_on_the_generator_alone(name: str, head: Head) -> None:
    states = []
    for number, seed in enumerate((5, 5, 6)):
        torch.manual_seed(number)
        states.append(build_network(name, 4, head, seeded(seed)).state_dict())
    first, second, other = states
    assert all(torch.equal(first[key], second[key]) for key in first)
    drawn = [key for key, value in first.items() if value.ndim > 1]
    assert not any(torch.equal(first[key], other[key]) for key in drawn)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("wrn-27-2", "the depth must be 6k + 4 and at least 10, such as 10, 16"),
        ("wrn-4-2", "the depth must be 6k + 4"),
        ("wrn-28-0", "width must be at least 1"),
        ("resnet", "network must be wrn-DEPTH-WIDTH, for example 'wrn-28-2', resnet-18, "),
        ("wrn-28", "or your own as module:name, not 'wrn-28'"),
        ("wrn-28-2 ", "not 'wrn-28-2 '"),
        ("", "not ''"),
    ],
)
def test_a_bad_name_is_explained(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_network(name)
    assert sentence in str(error.value)


def test_the_head_leaves_mixed_precision() -> None:
    detector = build_network("wrn-10-1", 5, "cosine")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert isinstance(detector, Detector)
        assert detector.similarities(images(4)).dtype == torch.float32
        assert build_network("wrn-10-1", 5)(images(4)).dtype == torch.float32


@pytest.mark.parametrize("head", get_args(Head))
def test_every_parameter_learns(head: Head) -> None:
    network = build_network("wrn-10-1", 3, head, seeded(0))
    loss = nn.functional.cross_entropy(network(images(6)), torch.tensor([0, 1, 2, 0, 1, 2]))
    names, parameters = zip(*network.named_parameters(), strict=True)
    for name, gradient in zip(names, torch.autograd.grad(loss, parameters), strict=True):
        assert torch.isfinite(gradient).all(), name
        # A shift before normalization has no effect.
        assert gradient.any() or name == "head.divisor.bias", name


@pytest.mark.parametrize("head", get_args(Head))
def test_a_grown_network_keeps_what_it_learned_and_starts_new_classes_afresh(head: Head) -> None:
    network = build_network("wrn-10-1", 3, head, seeded(0))
    network(images(4))
    network.eval()
    before = network(images(5, seed=1))
    network.grow(403, seeded(2))
    assert network.head.slots.out_features == 403
    after = network(images(5, seed=1))
    torch.testing.assert_close(after[:, :3], before)
    rows = network.head.slots.weight.detach()[3:]
    assert rows.shape == (400, network.feature_count)
    # The deviation of a uniform number within ± b is b / √3.
    expected = sqrt(1 / 64 / 3) if head == "linear" else sqrt(2 / 64)
    assert float(rows.std()) == pytest.approx(expected, rel=0.02)
    if network.head.slots.bias is not None:
        assert network.head.slots.bias.shape == (403,)
        assert network.head.slots.bias[3:].eq(0).all()
    assert all(parameter.requires_grad for parameter in network.parameters())
    again, other = (build_network("wrn-10-1", 3, head, seeded(0)) for _ in range(2))
    again.grow(403, seeded(2))
    other.grow(403, seeded(3))
    assert torch.equal(again.head.slots.weight[3:], rows)
    assert not torch.equal(other.head.slots.weight[3:], rows)


def test_a_frozen_network_stays_frozen_when_it_grows_and_none_can_shrink() -> None:
    network = build_network("wrn-10-1", 2, "cosine").requires_grad_(False).double()
    network.grow(3)
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert network(images(2).double()).dtype == torch.float64
    with pytest.raises(ConfigError, match="of 3 classes cannot be made one of 2"):
        network.grow(2)


def plain_features(pictures: Tensor, weights: dict[str, Tensor]) -> Tensor:
    maps = functional.conv2d(pictures, weights["first.weight"], padding=1)
    maps = normalized(maps, weights, "norm", True).relu()
    for number in range(8):
        name, stride = f"blocks.{number}", 2 if number in (2, 4, 6) else 1
        inner = functional.conv2d(maps, weights[f"{name}.conv1.weight"], stride=stride, padding=1)
        inner = normalized(inner, weights, f"{name}.norm1", True).relu()
        inner = functional.conv2d(inner, weights[f"{name}.conv2.weight"], padding=1)
        shortcut = maps
        if stride == 2:
            shortcut = functional.conv2d(maps, weights[f"{name}.shortcut.0.weight"], stride=2)
            shortcut = normalized(shortcut, weights, f"{name}.shortcut.1", True)
        maps = (normalized(inner, weights, f"{name}.norm2", True) + shortcut).relu()
    return maps.mean((2, 3))


def test_features_are_those_of_its_layers_written_out() -> None:
    network = build_network("resnet-18", 100, generator=seeded(2)).double().train()
    assert sum(one.numel() for one in network.parameters()) == 11_220_132, "as published"
    pictures = images(3, 16).double()
    expected = plain_features(pictures, dict(network.backbone.state_dict()))
    assert expected.shape == (3, 512)
    torch.testing.assert_close(network.features(pictures), expected)
