"""The way through a network that is written out, beside autograd's through its layers."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.hooks import RemovableHandle

from distillmatch.fast import is_plain, pointwise, trained
from distillmatch.fast.batch_statistics import Gradients, Normalized
from distillmatch.networks import BatchNorm, Parts, frozen_statistics, separate_statistics
from distillmatch.networks.wide_resnet import WideResNet


class Slowly:
    """The operations by torch, as their formulas say."""

    def __init__(self) -> None:
        self.awaited = 0

    def convolve_and_normalize(
        self, maps: Tensor, weight: Tensor, stride: int, shortcut: Tensor | None, norm: BatchNorm
    ) -> tuple[Tensor, Normalized]:
        made = functional.conv2d(maps, weight, stride=stride, padding=1)
        made = made if shortcut is None else made + shortcut
        coefficients, activated = [], []
        sizes, moving = norm.parts or ((len(made),), 1)
        for number, part in enumerate(torch.split(made, list(sizes))):
            mean = part.mean((0, 2, 3))
            variance = part.var((0, 2, 3), correction=0)
            inverse = 1 / (variance + norm.epsilon).sqrt()
            coefficients.append(torch.stack([mean, inverse]))
            normal = (part - _wide(mean)) * _wide(inverse)
            activated.append((normal * _wide(norm.weight) + _wide(norm.bias)).clamp_min(0))
            if number < moving and norm.moves_statistics:
                norm.running_mean.lerp_(mean, norm.momentum)
                norm.running_var.lerp_(part.var((0, 2, 3), correction=1), norm.momentum)
        return torch.cat(activated), Normalized(made, torch.stack(coefficients), sizes)

    def convolve_shortcut(self, maps: Tensor, weight: Tensor, stride: int) -> Tensor:
        return pointwise.convolve(maps, weight, stride)

    def take_back(
        self,
        given: Tensor,
        weight: Tensor,
        stride: int,
        of_sum: Tensor | None,
        to: Normalized,
        norm: BatchNorm,
    ) -> Gradients:
        taken = self.take_back_convolution(given, weight, stride, to.maps.shape)
        returned = self.take_back_normalization(taken, to, norm)
        return returned if of_sum is None else returned._replace(maps=returned.maps + of_sum)

    def take_back_convolution(
        self, given: Tensor, weight: Tensor, stride: int, shape: Sequence[int]
    ) -> Tensor:
        taken: Tensor = conv2d_input(shape, weight, given, stride=stride, padding=1)  # type: ignore[no-untyped-call]
        return taken.contiguous(memory_format=torch.channels_last)

    def take_back_shortcut(self, given: Tensor, weight: Tensor, stride: int, onto: Tensor) -> None:
        pointwise.take_back(given, weight, stride, onto)

    def take_back_normalization(self, given: Tensor, to: Normalized, norm: BatchNorm) -> Gradients:
        of_maps, of_weight, of_bias = [], torch.zeros(()), torch.zeros(())
        parts = zip(
            torch.split(to.maps, list(to.sizes)), torch.split(given, list(to.sizes)), strict=True
        )
        for (maps, gradient), (mean, inverse) in zip(parts, to.coefficients, strict=True):
            normal = (maps - _wide(mean)) * _wide(inverse)
            passes = normal * _wide(norm.weight) + _wide(norm.bias) > 0
            passed = gradient * passes
            along = (passed * normal).mean((0, 2, 3))
            level = passed.mean((0, 2, 3))
            scaled = passed - _wide(level) - normal * _wide(along)
            of_maps.append(scaled * _wide(norm.weight * inverse))
            of_weight = of_weight + (passed * normal).sum((0, 2, 3))
            of_bias = of_bias + passed.sum((0, 2, 3))
        return Gradients(torch.cat(of_maps), of_weight, of_bias)

    def weight_gradient(self, maps: Tensor, given: Tensor, side: int, stride: int) -> Tensor:
        shape = (given.shape[1], maps.shape[1], side, side)
        made: Tensor = conv2d_weight(maps, shape, given, stride=stride, padding=side // 2)  # type: ignore[no-untyped-call]
        return made.contiguous()

    def await_weight_gradients(self) -> None:
        self.awaited += 1


def _wide(numbers: Tensor) -> Tensor:
    return numbers[None, :, None, None]


def network(depth: int, width: int) -> WideResNet:
    made = WideResNet(depth, width, generator=torch.Generator().manual_seed(1)).double()
    generator = torch.Generator().manual_seed(2)
    for layer in made.modules():
        if isinstance(layer, BatchNorm):
            with torch.no_grad():
                layer.weight.uniform_(0.5, 1.5, generator=generator)
                layer.bias.uniform_(-0.5, 0.5, generator=generator)
    return made


def by_hand(backbone: WideResNet, images: Tensor) -> Tensor:
    weights = {layer: layer.weight.detach() for layer in backbone.convolutions}
    images = images.to(memory_format=torch.channels_last)
    return trained.features_by(backbone, images, weights, Slowly())


@pytest.mark.parametrize(
    ("depth", "width", "side", "parts", "moves"),
    [
        (16, 1, 8, None, True),
        (10, 2, 12, Parts((3, 2), 1), True),
        (10, 1, 9, Parts((2, 3), 2), False),
        (10, 1, 8, Parts((2, 2, 1), 3), True),
    ],
)
def test_features_gradients_and_statistics_are_those_of_the_layers(
    depth: int, width: int, side: int, parts: Parts | None, moves: bool
) -> None:
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(5, 3, side, side, generator=generator, dtype=torch.float64)
    found = []
    for ask in (WideResNet.__call__, by_hand):
        backbone, images = network(depth, width), drawn.clone().requires_grad_()
        with (
            nullcontext() if parts is None else separate_statistics(backbone, *parts),
            nullcontext() if moves else frozen_statistics(backbone),
        ):
            features = ask(backbone, images)
        weights = torch.linspace(-1, 1, features.numel(), dtype=torch.float64)
        (features * weights.view_as(features)).sum().backward()
        parameters = {name: one.grad for name, one in backbone.named_parameters()}
        made = {"features": features.detach(), "images": images.grad}
        found.append({**parameters, **made, **dict(backbone.named_buffers())})
    theirs, ours = found
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected)


def test_parameters_that_are_fixed_get_no_gradient_and_the_others_theirs() -> None:
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    found = []
    for ask in (WideResNet.__call__, by_hand):
        backbone = network(10, 1)
        backbone.first.weight.requires_grad_(False)
        backbone.blocks[1].norm1.bias.requires_grad_(False)
        ask(backbone, images).square().sum().backward()
        found.append({name: one.grad for name, one in backbone.named_parameters()})
    theirs, ours = found
    assert ours["first.weight"] is None and ours["blocks.1.norm1.bias"] is None
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected)


def test_without_gradients_nothing_is_kept_and_statistics_move() -> None:
    backbone, images = network(10, 1), torch.randn(4, 3, 8, 8, dtype=torch.float64)
    other = network(10, 1)
    with torch.no_grad():
        features, expected = by_hand(backbone, images), other(images)
    assert not features.requires_grad
    torch.testing.assert_close(features, expected)
    for ours, theirs in zip(backbone.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradients_are_taken_once_and_a_second_time_says_so() -> None:
    backbone = network(10, 1)
    features = by_hand(backbone, torch.randn(4, 3, 8, 8, dtype=torch.float64))
    features.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="can be taken only once"):
        features.sum().backward()  # type: ignore[no-untyped-call]


def test_gradients_are_handed_over_and_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    weight_gradient = Slowly.weight_gradient

    def noted(self: Slowly, *given: Any) -> Tensor:
        gradient = weight_gradient(self, *given)
        made.append(gradient.data_ptr())
        return gradient

    monkeypatch.setattr(Slowly, "weight_gradient", noted)
    backbone = network(10, 1)
    by_hand(backbone, torch.randn(4, 3, 8, 8, dtype=torch.float64)).sum().backward()  # type: ignore[no-untyped-call]
    kept = [one.weight.grad for one in backbone.convolutions]
    assert sorted(made) == sorted(one.data_ptr() for one in kept if one is not None)


def test_weight_gradients_are_awaited_once_at_the_end_of_the_way_back() -> None:
    backbone, operations = network(10, 1), Slowly()
    weights = {layer: layer.weight.detach() for layer in backbone.convolutions}
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64).to(memory_format=torch.channels_last)
    features = trained.features_by(backbone, images, weights, operations)
    assert operations.awaited == 0
    features.sum().backward()  # type: ignore[no-untyped-call]
    assert operations.awaited == 1


@pytest.mark.parametrize(
    "watch",
    [
        lambda layer: layer.register_forward_hook(lambda *given: None),
        lambda layer: layer.register_forward_pre_hook(lambda *given: None),
        lambda layer: layer.register_full_backward_hook(lambda *given: None),
        lambda layer: register_module_forward_hook(lambda *given: None),
    ],
)
def test_a_network_whose_layers_are_watched_calls_them_one_by_one(
    watch: Callable[[nn.Module], RemovableHandle],
) -> None:
    backbone = network(10, 1)
    assert is_plain(backbone)
    with watch(backbone.blocks[1].conv2):
        assert not is_plain(backbone)
    assert is_plain(backbone)


def test_a_network_with_weights_made_of_others_calls_its_layers_one_by_one() -> None:
    backbone, images = network(10, 1), torch.randn(4, 3, 8, 8, dtype=torch.float64)
    weight_norm(backbone.blocks[1].conv2)
    backbone(images).sum().backward()
    assert not is_plain(backbone)


def test_a_layer_that_was_replaced_is_the_one_that_is_used() -> None:
    backbone, images = network(10, 1), torch.randn(4, 3, 8, 8, dtype=torch.float64)
    backbone.blocks[1].norm2 = BatchNorm(len(backbone.blocks[1].norm2.weight)).double().eval()
    backbone(images)
    assert backbone.blocks[1].norm2 in backbone.norms
    layers = list(backbone.modules())
    assert backbone.norms == [layer for layer in layers if isinstance(layer, BatchNorm)]
    assert backbone.convolutions == [layer for layer in layers if isinstance(layer, nn.Conv2d)]


def test_normalizations_of_another_precision_or_place_or_made_of_others_are_not_plain() -> None:
    cpu = torch.device("cpu")
    assert BatchNorm(4).is_plain(cpu)
    assert not BatchNorm(4).double().is_plain(cpu)
    assert not BatchNorm(4).is_plain(torch.device("cuda", 0))
    assert not weight_norm(BatchNorm(4), dim=0).is_plain(cpu)
