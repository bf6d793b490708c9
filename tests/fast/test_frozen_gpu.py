"""Frozen networks by our kernels, beside torch's operations in float64 and in half precision."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from normalized import frozen_backbone
from test_kernels_gpu import few_channels, maps
from torch import Tensor

from distillmatch import fast
from distillmatch.concurrency import shared_device
from distillmatch.fast import convolution as kernel
from distillmatch.fast import running_norm
from distillmatch.fast.convolution import ADD_AFTER, ADD_BEFORE
from distillmatch.networks import BatchNorm, WideResNet, acceleration

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def half_precision() -> Iterator[None]:
    with torch.autocast("cuda", torch.bfloat16):
        yield


def drawn(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=generator)


def on_device(depth: int, width: int) -> WideResNet:
    return frozen_backbone(depth, width).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def coefficients(channels: int) -> tuple[Tensor, Tensor]:
    norm = BatchNorm(channels).cuda().eval().requires_grad_(False)
    norm.weight.copy_(torch.linspace(-0.5, 1.5, channels))
    norm.bias.copy_(torch.linspace(1, -1, channels))
    norm.running_mean.copy_(torch.linspace(-1, 1, channels))
    norm.running_var.copy_(torch.linspace(0.5, 2, channels))
    assert running_norm.takes([channels], norm.weight.device)
    layers = [norm.weight] * 2, [norm.bias] * 2, [norm.running_mean] * 2, [norm.running_var] * 2
    scales, shifts = running_norm.norm_coefficients(*layers, [norm.epsilon] * 2)
    expected = norm.weight / (norm.running_var + norm.epsilon).sqrt()
    for first, second in (scales.split(channels), shifts.split(channels)):
        assert torch.equal(first, second)
    torch.testing.assert_close(scales[:channels], expected)
    torch.testing.assert_close(shifts[:channels], norm.bias - norm.running_mean * expected)
    return scales[channels:], shifts[channels:]


def features_and_gradient(backbone: WideResNet, images: Tensor) -> tuple[Tensor, Tensor]:
    moved = images.detach().requires_grad_()
    features = backbone(moved)
    weights = drawn(*features.shape, seed=9).to(features.dtype)
    (gradient,) = torch.autograd.grad((features * weights).sum(), moved)
    return features.detach(), gradient


@pytest.mark.parametrize(
    ("depth", "width", "side", "count"),
    [(28, 2, 32, 40), (16, 1, 64, 9), (10, 2, 64, 5), (10, 3, 20, 7)],
)
def test_features_and_gradients_are_as_near_to_float64_as_those_of_torch_in_half_precision(
    depth: int, width: int, side: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, images = on_device(depth, width), drawn(count, 3, side, side, seed=1)
    assert fast.backbone_features(backbone, images) is not None
    ours = features_and_gradient(backbone, images)
    assert ours[0].dtype == torch.bfloat16 and ours[1].dtype == torch.float32
    assert all(map(torch.equal, ours, features_and_gradient(backbone, images)))
    with torch.no_grad():
        assert torch.equal(backbone(images), ours[0])
    monkeypatch.setattr(acceleration, "_fast", lambda: None)
    theirs = features_and_gradient(backbone, images)
    with torch.autocast("cuda", enabled=False):
        exact = features_and_gradient(backbone.double(), images.double())
    for own, usual, wanted in zip(ours, theirs, exact, strict=True):
        error, usual_error = (
            float((one.double() - wanted).norm() / wanted.norm()) for one in (own, usual)
        )
        assert error < 1.25 * usual_error, (error, usual_error)


def test_features_are_the_same_to_the_bit_beside_other_runs() -> None:
    backbone, seen = on_device(16, 2), []
    for shared in (False, True):
        with shared_device() if shared else nullcontext():
            seen.append(features_and_gradient(backbone, drawn(200, 3, 32, 32, seed=1)))
    assert all(map(torch.equal, *seen))


def test_only_a_network_in_evaluation_that_does_not_learn_is_taken() -> None:
    backbone, images = on_device(10, 1), drawn(2, 3, 32, 32, seed=1)

    def taken() -> bool:
        return fast.backbone_features(backbone, images) is not None

    assert taken()
    with torch.autocast("cuda", torch.float16):
        assert not taken()
    with torch.autocast("cuda", enabled=False):
        assert not taken()
    backbone.last_norm.train()
    assert not taken()
    backbone.eval().first.requires_grad_(True)
    assert not taken()
    with torch.no_grad():
        assert taken()


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("channels", "side", "count"), [(16, 7, 3), (48, 8, 9), (640, 4, 6)])
def test_normalization_by_running_statistics_is_torchs_with_relu_and_sum(
    channels: int, side: int, count: int, adds: bool
) -> None:
    by, inputs = coefficients(channels), maps(count, channels, side, 1)
    shortcut = maps(count, channels, side, 2) if adds else None
    activated, total, kept = running_norm.activate(inputs, *by, shortcut, True, True)
    summed = inputs if shortcut is None else (inputs.float() + shortcut.float()).bfloat16()
    scales, shifts = (one.double()[:, None, None] for one in by)
    expected = (summed.double() * scales + shifts).float().relu().bfloat16()
    assert total is not None and torch.equal(total, summed)
    assert torch.equal(activated, expected)
    assert kept is not None
    given, of_sum = maps(count, channels, side, 3), maps(count, channels, side, 4)
    back = running_norm.activate_backward(given, kept, by[0], of_sum if adds else None)
    wanted = given.double() * (expected > 0) * scales + (of_sum if adds else 0)
    assert torch.equal(back, wanted.float().bfloat16())
    of_means = drawn(count, channels, seed=5).bfloat16()
    back = running_norm.activate_backward(of_means, kept, by[0], None, side * side)
    wanted = of_means.double()[:, :, None, None] * (expected > 0) * scales
    assert torch.equal(back, wanted.float().bfloat16())
    plain = running_norm.activate(inputs, *by, shortcut, False, False)
    assert torch.equal(plain[0], expected) and plain[1:] == (None, None)


@pytest.mark.parametrize("count", [1, 7, 320])
@few_channels
def test_a_convolution_that_normalizes_does_what_two_kernels_do_to_the_bit(
    channels_in: int, channels_out: int, side: int, count: int
) -> None:
    inputs, weight = maps(count, channels_in, side, 1), maps(channels_out, channels_in, 3, 2) / 8
    shortcut, by = maps(count, channels_out, side, 3), coefficients(channels_out)
    for added in (None, shortcut) if channels_in == channels_out else (None,):
        assert kernel.takes_activated(inputs, weight, 1, 0 if added is None else ADD_BEFORE)
        ours = kernel.convolve_and_activate(inputs, weight, *by, added, True, True)
        apart = running_norm.activate(kernel.convolve(inputs, weight), *by, added, True, True)
        for one, other in zip(ours, apart, strict=True):
            assert one is not None and other is not None and torch.equal(one, other)
        fewer = kernel.convolve_and_activate(inputs, weight, *by, added, False, False)
        assert torch.equal(fewer[0], ours[0]) and fewer[1:] == (None, None)
    if channels_in == 3:
        assert not kernel.takes_activated(shortcut, weight, 1, 0, transposed=True)
        return
    before = coefficients(channels_in)
    _, _, signs = running_norm.activate(inputs, *before, None, False, True)
    beside = maps(count, channels_in, side, 4)
    assert signs is not None
    for adds in (0, ADD_AFTER) if channels_in == channels_out else (ADD_BEFORE,):
        assert kernel.takes_activated(shortcut, weight, 1, adds, transposed=True)
        ours_back = kernel.convolve_and_activate_backward(
            shortcut, weight, before[0], signs, beside if adds else None, adds
        )
        of_input = kernel.convolve(shortcut, weight, transposed=True)
        if adds == ADD_BEFORE:
            of_input = (of_input.float() + beside.float()).bfloat16()
        of_total = beside if adds == ADD_AFTER else None
        back = running_norm.activate_backward(of_input, signs, before[0], of_total)
        assert torch.equal(ours_back, back)


@pytest.mark.parametrize("training", [False, True])
def test_views_of_images_give_the_features_of_their_copies(training: bool) -> None:
    backbone, images = on_device(16, 2).train(training), drawn(9, 3, 40, 40, seed=1).bfloat16()
    images = images.to(memory_format=torch.channels_last)
    for view in (images[::2, :, :32, :32], images[:, :, 4:36, 4:36]):
        with torch.no_grad():
            assert torch.equal(backbone(view), backbone(view.clone()))
