"""A network passed as one function, beside autograd's way through its layers."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from normalized import drawn_backbone, frozen_backbone
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.hooks import RemovableHandle

from distillmatch.fast import as_maps, frozen, has_hooks, is_plain, trained
from distillmatch.fast.convolution import are_maps
from distillmatch.fast.walk import Layers
from distillmatch.networks import StatisticsGroups, WideResNet, separate_statistics

CPU = torch.device("cpu")


def network(depth: int, width: int) -> WideResNet:
    return drawn_backbone(depth, width).double()


def images(count: int, side: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(count, 3, side, side, generator=generator, dtype=torch.float64)


def walked(backbone: WideResNet, images: Tensor, way: Any = trained) -> Tensor:
    layers = Layers.of(backbone)
    weights = {layer: layer.weight.detach() for layer in layers.convolutions}
    images = images.to(memory_format=torch.channels_last)
    features: Tensor = way.features(layers, images, weights)
    return features


@pytest.mark.parametrize(
    ("depth", "width", "side", "groups"),
    [
        (16, 1, 8, None),
        (10, 2, 12, StatisticsGroups((3, 2), 1)),
        (10, 1, 9, StatisticsGroups((2, 3), 0)),
        (10, 1, 8, StatisticsGroups((2, 2, 1), 3)),
        (10, 1, 8, StatisticsGroups((1, 1, 1, 1, 1), 5)),
        (10, 1, 8, StatisticsGroups((1, 1, 1, 1, 1), 3)),
    ],
)
def test_features_gradients_and_statistics_are_those_of_the_layers(
    depth: int, width: int, side: int, groups: StatisticsGroups | None
) -> None:
    found = []
    for ask in (WideResNet.__call__, walked):
        backbone, seen = network(depth, width), images(5, side).requires_grad_()
        with nullcontext() if groups is None else separate_statistics(backbone, *groups):
            features = ask(backbone, seen)
        weights = torch.linspace(-1, 1, features.numel(), dtype=torch.float64)
        (features * weights.view_as(features)).sum().backward()
        parameters = {name: one.grad for name, one in backbone.named_parameters()}
        made = {"features": features.detach(), "images": seen.grad}
        found.append({**parameters, **made, **dict(backbone.named_buffers())})
    theirs, ours = found
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected)


def test_fixed_parameters_get_no_gradient_and_the_others_theirs() -> None:
    found = []
    for ask in (WideResNet.__call__, walked):
        backbone = network(10, 1)
        backbone.first.weight.requires_grad_(False)
        backbone.blocks[1].norm1.bias.requires_grad_(False)
        ask(backbone, images(4, 8)).square().sum().backward()
        found.append({name: one.grad for name, one in backbone.named_parameters()})
    theirs, ours = found
    assert ours["first.weight"] is None and ours["blocks.1.norm1.bias"] is None
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected)


def test_without_gradients_statistics_are_updated_all_the_same() -> None:
    backbone, other = network(10, 1), network(10, 1)
    with torch.no_grad():
        features, expected = walked(backbone, images(4, 8)), other(images(4, 8))
    assert not features.requires_grad
    torch.testing.assert_close(features, expected)
    for ours, theirs in zip(backbone.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_second_backward_pass_in_training_is_refused() -> None:
    features = walked(network(10, 1), images(4, 8))
    features.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="can be taken only once"):
        features.sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(("depth", "width", "side"), [(10, 1, 8), (16, 1, 7), (10, 2, 12)])
def test_a_frozen_network_gives_features_and_their_gradient_of_the_images(
    depth: int, width: int, side: int
) -> None:
    backbone = frozen_backbone(depth, width).double()
    found = []
    for ask in (WideResNet.__call__, partial(walked, way=frozen)):
        seen = images(3, side).requires_grad_()
        features = ask(backbone, seen)
        weights = torch.linspace(-1, 1, features.numel(), dtype=torch.float64)
        loss = (features * weights.view_as(features)).sum()
        gradients = [torch.autograd.grad(loss, seen, retain_graph=True)[0] for _ in range(2)]
        assert torch.equal(*gradients) and float(gradients[0].abs().max()) > 0
        found.append((features.detach(), gradients[0]))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        assert torch.equal(walked(backbone, images(3, side), way=frozen), found[1][0])


@pytest.mark.parametrize(
    "watch",
    [
        lambda layer: layer.register_forward_hook(lambda *given: None),
        lambda layer: layer.register_forward_pre_hook(lambda *given: None),
        lambda layer: layer.register_full_backward_hook(lambda *given: None),
        lambda layer: register_module_forward_hook(lambda *given: None),
    ],
)
def test_a_network_with_hooks_goes_layer_by_layer(
    watch: Callable[[nn.Module], RemovableHandle],
) -> None:
    backbone = network(10, 1)
    for layer in (backbone.blocks[1].conv2, backbone.blocks[0]):
        assert not has_hooks(backbone)
        with watch(layer):
            assert has_hooks(backbone)
    assert not has_hooks(backbone)


def test_a_network_with_layers_of_another_kind_goes_layer_by_layer() -> None:
    def changed(change: Callable[[WideResNet], object]) -> bool:
        backbone = drawn_backbone(10, 1)
        change(backbone)
        return not is_plain(Layers.of(backbone), CPU)

    assert not changed(lambda backbone: None)
    assert changed(lambda backbone: backbone.double())
    assert changed(lambda backbone: weight_norm(backbone.blocks[1].conv2))
    assert changed(lambda backbone: weight_norm(backbone.last_norm, dim=0))
    assert changed(lambda backbone: setattr(backbone, "first", nn.Conv2d(3, 16, 3, padding=1)))
    for wrong in ({"dilation": 2}, {"padding": 0}, {"padding_mode": "circular"}):
        given: Any = {"padding": 1, "bias": False, **wrong}
        layers = Layers.of(drawn_backbone(10, 1))
        stage = layers.first._replace(convolution=nn.Conv2d(3, 16, 3, **given))
        assert not is_plain(layers._replace(first=stage), CPU)
    assert not is_plain(Layers.of(drawn_backbone(10, 1)), torch.device("cuda", 0))


@pytest.mark.parametrize("cut", [slice(None, None, 2), (..., slice(2, 6), slice(2, 6))])
def test_views_of_images_are_copied_to_where_kernels_read_them(cut: Any) -> None:
    images = torch.randn(6, 16, 8, 8).bfloat16().to(memory_format=torch.channels_last)
    maps = as_maps(images[cut])
    assert not are_maps(images[cut]) and are_maps(maps) and torch.equal(maps, images[cut])
    assert as_maps(images) is images
