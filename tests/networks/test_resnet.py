"""ResNet-18 for small images, against its layers written out."""

import torch
from made_images import images, seeded
from plain import normalized
from torch import Tensor
from torch.nn import functional

from distillmatch.networks import build_network


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
