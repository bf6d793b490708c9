"""A network in training that is written out, on a GPU, beside its layers in float32."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from slow import activated_by_parts
from test_kernels_gpu import maps
from torch import Tensor, nn
from torch.nn import functional

from distillmatch.networks import (
    BatchNorm,
    Parts,
    frozen_statistics,
    separate_statistics,
    shared_device,
)
from distillmatch.networks.convolution import rounded_weights
from distillmatch.networks.kernels import convolution_normalization as kernel
from distillmatch.networks.kernels import trained
from distillmatch.networks.kernels.batch_statistics import Normalized
from distillmatch.networks.wide_resnet import WideResNet

pytestmark = pytest.mark.gpu

PARTS = [
    (320, Parts((192, 128), 1)),
    (64, None),
    (2, Parts((1, 1), 2)),
    (33, Parts((32, 1), 1)),
    (519, Parts((256, 192, 71), 3)),
    (70, Parts((16, 32, 2, 20), 2)),
    (70, Parts((16, 32, 2, 20), 0)),
]


def layer(channels: int, parts: Parts | None) -> BatchNorm:
    norm = BatchNorm(channels).cuda()
    norm.parts = parts
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 1.5, channels))
        norm.bias.copy_(torch.linspace(-1, 1, channels))
    return norm


def assert_near(ours: Tensor, theirs: Tensor) -> None:
    scale = float(theirs.float().abs().max())
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=0.02, atol=0.01 * scale)


def assert_mostly_near(ours: Tensor, theirs: Tensor) -> None:
    """Compare gradients behind a ReLU, where a number on its edge may fall to either side."""
    scale = float(theirs.float().abs().max())
    far = (ours.float() - theirs.float()).abs() > 0.02 * theirs.float().abs() + 0.01 * scale
    assert far.float().mean() < 1e-3


@pytest.mark.parametrize(("count", "parts"), PARTS)
@pytest.mark.parametrize(
    ("channels_in", "channels_out", "side", "adds"),
    [
        (16, 32, 32, False),
        (32, 32, 32, False),
        (32, 32, 32, True),
        (64, 64, 16, False),
        (64, 64, 16, True),
    ],
)
def test_a_convolution_and_the_normalization_after_it_are_torchs(
    channels_in: int, channels_out: int, side: int, count: int, parts: Parts | None, adds: bool
) -> None:
    inputs, weight = maps(count, channels_in, side, 1), maps(channels_out, channels_in, 3, 2) / 8
    shortcut = maps(count, channels_out, side, 3) if adds else None
    assert kernel.takes(inputs, weight, 1, adds=adds)
    found = []
    for shared in (False, False, True):
        norm = layer(channels_out, parts)
        with shared_device() if shared else nullcontext():
            activated, made = kernel.normalize(inputs, weight, shortcut, norm)
        found.append([activated, *made[:2], norm.running_mean, norm.running_var])
    for other in found[1:]:
        assert all(torch.equal(one, again) for one, again in zip(found[0], other, strict=True))

    activated, summed, _, mean, variance = found[0]
    expected = functional.conv2d(inputs.float(), weight.float(), padding=1)
    if shortcut is not None:
        expected = expected.bfloat16().float() + shortcut.float()
    torch.testing.assert_close(summed.float(), expected, rtol=2**-7, atol=0.02)
    norm = layer(channels_out, parts)
    assert_near(activated, activated_by_parts(summed.float(), parts, norm.tensors).detach())
    assert_near(mean, norm.running_mean)
    assert_near(variance, norm.running_var)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("count", "parts"), PARTS)
@pytest.mark.parametrize(("channels", "side"), [(32, 32), (64, 16)])
def test_the_way_back_through_a_convolution_and_the_normalization_before_it_is_autograds(
    channels: int, side: int, count: int, parts: Parts | None, adds: bool
) -> None:
    given, weight = maps(count, channels, side, 1), maps(channels, channels, 3, 2) / 8
    before, of_sum = maps(count, channels, side, 3), maps(count, channels, side, 4)
    norm = layer(channels, parts)
    leaf = before.float().requires_grad_()
    taken = functional.conv_transpose2d(given.float(), weight.float(), padding=1)
    expected = activated_by_parts(leaf, parts, norm.tensors)
    expected.backward(taken.bfloat16().float())  # type: ignore[no-untyped-call]
    assert leaf.grad is not None and norm.weight.grad is not None and norm.bias.grad is not None
    expected = leaf.grad + of_sum.float() if adds else leaf.grad

    coefficients, sizes = [], (count,) if parts is None else parts.sizes
    for part in torch.split(before, list(sizes)):
        mean = part.float().mean((0, 2, 3))
        inverse = (part.float().var((0, 2, 3), correction=0) + norm.epsilon).rsqrt()
        scale = norm.weight.detach() * inverse
        coefficients.append(torch.stack([scale, norm.bias.detach() - mean * scale, mean, inverse]))
    to = Normalized(before, torch.stack(coefficients), sizes)
    assert kernel.takes_back(given, weight, 1)
    found = []
    for shared in (False, False, True):
        with shared_device() if shared else nullcontext():
            found.append(kernel.take_back(given, weight, of_sum if adds else None, to, norm))
    for other in found[1:]:
        assert all(torch.equal(one, again) for one, again in zip(found[0], other, strict=True))
    assert_mostly_near(found[0].maps, expected)
    assert_near(found[0].weight, norm.weight.grad)
    assert_near(found[0].bias, norm.bias.grad)


def test_what_the_kernel_is_not_made_for_is_left_to_others() -> None:
    weight = maps(32, 32, 3, 1)
    assert kernel.takes(maps(2, 32, 32, 2), weight, 1, adds=False)
    assert not kernel.takes(maps(2, 32, 32, 2), weight, 2, adds=False)
    assert not kernel.takes(maps(2, 32, 16, 2), weight, 1, adds=False)
    assert not kernel.takes(maps(2, 32, 64, 2), weight, 1, adds=False)
    assert not kernel.takes(maps(2, 32, 32, 2).half(), weight.half(), 1, adds=False)
    assert not kernel.takes(maps(2, 32, 32, 2), maps(32, 32, 1, 1), 1, adds=False)
    assert not kernel.takes_back(maps(2, 32, 32, 2), maps(32, 16, 3, 1), 1)


@contextmanager
def layer_by_layer(backbone: nn.Module) -> Iterator[None]:
    """Let someone watch a layer, so that all are called one by one."""
    hook = next(backbone.children()).register_forward_hook(lambda *given: None)
    try:
        yield
    finally:
        hook.remove()


def gradients_of(
    width: int, side: int, count: int, parts: Parts | None, half: bool, around: Callable[..., Any]
) -> dict[str, Tensor]:
    """Return features, statistics and gradients of a network's parameters and of its images."""
    backbone = WideResNet(16, width, generator=torch.Generator().manual_seed(1)).cuda()
    backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(
        count, 3, side, side, device="cuda", generator=torch.Generator("cuda").manual_seed(2)
    )
    images = images.to(memory_format=torch.channels_last).requires_grad_()
    with (
        torch.autocast("cuda", torch.bfloat16, enabled=half),
        nullcontext() if parts is None else separate_statistics(backbone, *parts),
        around(backbone),
    ):
        features = backbone(images)
    generator = torch.Generator("cuda").manual_seed(3)
    given = torch.randn(features.shape, device="cuda", generator=generator)
    (features.float() * given).sum().backward()
    found = {name: one.grad for name, one in backbone.named_parameters()}
    found |= {"features": features.detach(), "images": images.grad}
    return {**found, **dict(backbone.named_buffers())}


@pytest.mark.parametrize(
    ("width", "side", "count", "parts"),
    [
        (2, 32, 64, None),
        (2, 32, 96, Parts((64, 32), 1)),
        (2, 32, 160, Parts((64, 60, 36), 3)),
        (1, 32, 32, None),
        (4, 32, 16, Parts((9, 7), 2)),
        (2, 64, 16, None),
    ],
)
def test_a_network_is_as_near_to_float32_as_layer_by_layer(
    width: int, side: int, count: int, parts: Parts | None
) -> None:
    def errors(found: dict[str, Tensor]) -> list[float]:
        """Return those of features, images' gradient, statistics and parameters' gradients."""
        kinds: list[list[str]] = [["features"], ["images"], [], []]
        for name in exact:
            if name not in ("features", "images"):
                kinds[2 if "running" in name else 3].append(name)
        made = []
        for names in kinds:
            true = torch.cat([exact[name].float().flatten() for name in names])
            ours = torch.cat([found[name].float().flatten() for name in names])
            made.append(float((ours - true).norm() / true.norm()))
        return made

    sizes = width, side, count, parts
    exact = gradients_of(*sizes, False, lambda backbone: nullcontext())
    ours = gradients_of(*sizes, True, lambda backbone: nullcontext())
    theirs = gradients_of(*sizes, True, layer_by_layer)
    assert any(not torch.equal(ours[name], theirs[name]) for name in exact), "it was not used"
    for error, usual in zip(errors(ours), errors(theirs), strict=True):
        assert error < 1.25 * usual, (errors(ours), errors(theirs))


def test_a_network_is_the_same_to_the_bit_again_and_beside_other_runs() -> None:
    sizes = 2, 32, 160, Parts((80, 48, 32), 3)
    found = [
        gradients_of(*sizes, True, lambda backbone: nullcontext()),
        gradients_of(*sizes, True, lambda backbone: nullcontext()),
    ]
    with shared_device():
        found.append(gradients_of(*sizes, True, lambda backbone: nullcontext()))
    for name, first in found[0].items():
        assert all(torch.equal(first, other[name]) for other in found[1:]), name


def test_who_goes_layer_by_layer() -> None:
    backbone = WideResNet(10, 2).cuda()
    images = torch.randn(4, 3, 32, 32, device="cuda")

    def taken(dtype: torch.dtype = torch.bfloat16) -> bool:
        with torch.autocast("cuda", dtype), rounded_weights(backbone.convolutions):
            return trained.takes(backbone, images)

    assert taken()
    assert not taken(torch.float16)
    assert not trained.takes(backbone, images)
    with separate_statistics(backbone, [2, 2]):
        assert taken()
    for sizes in ([4, 1], [4, 0], [1, 1, 1, 0, 1]):
        with separate_statistics(backbone, sizes):
            assert not taken()
    with frozen_statistics(backbone):
        assert taken()
    backbone.eval()
    assert not taken()


def test_a_captured_step_gives_the_gradients_of_one_that_is_not() -> None:
    backbone = WideResNet(10, 2, generator=torch.Generator().manual_seed(1)).cuda()
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = maps(128, 3, 32, 1).float()

    def step() -> list[Tensor | None]:
        for parameter in backbone.parameters():
            parameter.grad = None
        with torch.autocast("cuda", torch.bfloat16):
            features = backbone(images)
        features.square().sum().backward()
        return [parameter.grad for parameter in backbone.parameters()]

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        eager = [one.clone() for one in step() if one is not None]
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(eager, captured, strict=True):
        assert other is not None and torch.equal(one, other)
