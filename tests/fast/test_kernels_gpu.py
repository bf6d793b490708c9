"""Our CUDA kernels beside torch's own operations in float32."""

from copy import deepcopy

import pytest
import torch
from normalized import activated_by_groups, normalize, normalize_backward
from torch import Tensor
from torch.nn import functional

from distillmatch.fast import batch_norm, compiler, operators
from distillmatch.fast import convolution as kernel
from distillmatch.fast import weight_gradient as weight_gradient_module
from distillmatch.fast.convolution import convolve, takes
from distillmatch.fast.operators import OPERATORS, Draw, Operator, wrong_operators
from distillmatch.fast.weight_gradient import weight_gradient
from distillmatch.networks import BatchNorm, StatisticsGroups

pytestmark = pytest.mark.gpu
torch.backends.cudnn.deterministic = True  # as the engine sets it

SHAPES = [
    (16, 32, 40, None),
    (32, 16, 33, StatisticsGroups((20, 13), 1)),
    (48, 8, 7, StatisticsGroups((3, 4), 2)),
    (128, 8, 320, StatisticsGroups((192, 128), 1)),
    (64, 16, 519, StatisticsGroups((256, 192, 71), 3)),
    (16, 32, 19, StatisticsGroups((4, 9, 1, 5), 2)),
    (32, 16, 19, StatisticsGroups((4, 9, 1, 5), 0)),
    (640, 4, 6, None),
]
few_channels = pytest.mark.parametrize(
    ("channels_in", "channels_out", "side"),
    [
        (3, 16, 32), (16, 16, 32), (16, 32, 32), (32, 32, 32), (64, 64, 16),
        (3, 16, 64), (16, 16, 64), (16, 32, 64), (32, 32, 64),
    ],
)  # fmt: skip


def maps(count: int, channels: int, side: int, seed: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    drawn = torch.randn(count, channels, side, side, device="cuda", generator=generator)
    return drawn.bfloat16().to(memory_format=torch.channels_last)


def plain(norm: BatchNorm, inputs: Tensor, shortcut: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute in float32 by torch, group by group."""
    summed = inputs if shortcut is None else (inputs + shortcut).bfloat16()
    summed = summed.float()
    layer = norm.weight, norm.bias, norm.running_mean, norm.running_var
    return summed, activated_by_groups(summed, norm.groups, layer)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("channels", "side", "count", "groups"), SHAPES)
def test_normalization_by_our_kernels_is_torchs_with_relu_and_sum(
    channels: int, side: int, count: int, groups: StatisticsGroups | None, adds: bool
) -> None:
    results = []
    for fused in (True, False):
        norm = BatchNorm(channels).cuda()
        norm.groups = groups
        with torch.no_grad():
            norm.weight.copy_(torch.linspace(0.5, 1.5, channels))
            norm.bias.copy_(torch.linspace(-1, 1, channels))
        inputs = 2 * maps(count, channels, side, 1) + 1
        shortcut = maps(count, channels, side, 2) if adds else None
        given, of_sum = maps(count, channels, side, 3), maps(count, channels, side, 4)
        gradients: list[Tensor | None]
        if fused:
            assert batch_norm.takes(channels, count, inputs.device)
            made = normalize(inputs, shortcut, norm)
            activated = made.activated
            gradients = [*normalize_backward(given, of_sum, made, norm)]
        else:
            inputs.requires_grad_()
            summed, activated = plain(norm, inputs, shortcut)
            torch.autograd.backward([activated, summed], [given.float(), of_sum.float()])
            gradients = [inputs.grad, norm.weight.grad, norm.bias.grad]
        results.append([activated.detach(), norm.running_mean, norm.running_var, *gradients])
    for ours, theirs in zip(*results, strict=True):
        assert ours is not None and theirs is not None
        scale = float(theirs.float().abs().max())
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=0.02, atol=0.01 * scale)


@pytest.mark.parametrize(
    ("count", "inside", "outside", "side", "kernel", "stride"),
    [
        (320, 3, 16, 32, 3, 1), (64, 16, 32, 32, 3, 1), (320, 32, 32, 32, 3, 1),
        (64, 32, 64, 32, 3, 2), (64, 64, 64, 16, 3, 1), (33, 128, 128, 8, 3, 1),
        (64, 16, 32, 32, 1, 1), (64, 64, 128, 16, 1, 2), (5, 80, 96, 7, 3, 1),
        (320, 64, 64, 16, 3, 1), (320, 128, 128, 8, 3, 1), (2, 128, 128, 8, 3, 1),
        (1, 3, 16, 32, 3, 1), (1, 32, 32, 32, 3, 1), (7, 64, 64, 16, 3, 1),
        (33, 3, 16, 64, 3, 1), (33, 16, 32, 64, 3, 1), (33, 32, 32, 64, 3, 1),
        (33, 64, 64, 32, 3, 1), (33, 128, 128, 16, 3, 1),
        (320, 32, 64, 32, 3, 2), (320, 64, 128, 16, 3, 2), (200, 64, 128, 16, 3, 2),
        (320, 16, 32, 32, 1, 1), (320, 32, 64, 32, 1, 2), (320, 64, 128, 16, 1, 2),
        (64, 3, 16, 8, 3, 1), (64, 16, 16, 8, 3, 1), (64, 16, 32, 8, 3, 2), (64, 32, 64, 4, 3, 2),
        (9, 3, 16, 21, 3, 1), (9, 16, 48, 21, 3, 2), (9, 48, 96, 11, 3, 2), (9, 48, 96, 11, 1, 2),
        (1, 640, 320, 4, 3, 1), (3, 10, 6, 9, 3, 1), (3, 10, 6, 9, 1, 1), (130, 5, 7, 1, 3, 1),
    ],
)  # fmt: skip
def test_the_weight_gradient_is_that_of_a_float32_convolution(
    count: int, inside: int, outside: int, side: int, kernel: int, stride: int
) -> None:
    inputs = maps(count, inside, side, 1)
    weight = torch.zeros(outside, inside, kernel, kernel, device="cuda", dtype=torch.float64)
    weight.requires_grad_()
    output = functional.conv2d(inputs.double(), weight, stride=stride, padding=kernel // 2)
    gradient = maps(count, outside, output.shape[2], 2)
    output.backward(gradient.double())  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    scale = float(weight.grad.abs().max())
    ours = weight_gradient(inputs, gradient, kernel, stride)
    by_cudnn = kernel == 3 and not weight_gradient_module.takes(inputs, gradient, kernel, stride)
    rtol, atol = (2**-8, 2**-8 * scale) if by_cudnn else (1e-4, 1e-5 * scale)
    torch.testing.assert_close(ours.double(), weight.grad, rtol=rtol, atol=atol)
    assert torch.equal(ours, weight_gradient(inputs, gradient, kernel, stride))


@pytest.mark.parametrize("count", [1, 7, 320])
@few_channels
def test_few_channels_are_convolved_as_in_float32(
    channels_in: int, channels_out: int, count: int, side: int
) -> None:
    inputs = maps(count, channels_in, side, seed=1)
    gradient = maps(count, channels_out, side, seed=2)
    weight = maps(channels_out, channels_in, 3, seed=3) / 8
    assert takes(inputs, weight, 1)
    expected = functional.conv2d(inputs.float(), weight.float(), padding=1)
    ours = convolve(inputs, weight)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(ours.float(), expected, rtol=2**-7, atol=0.02)
    assert torch.equal(ours, convolve(inputs, weight))
    assert takes(gradient, weight, 1, transposed=True)
    expected = functional.conv_transpose2d(gradient.float(), weight.float(), padding=1)
    ours = convolve(gradient, weight, transposed=True)
    torch.testing.assert_close(ours.float(), expected, rtol=2**-7, atol=0.02)


def test_a_convolution_is_the_same_to_the_bit_however_many_images_are_convolved_with_it() -> None:
    inputs, weight = maps(50, 32, 32, seed=1), maps(32, 32, 3, seed=2)
    assert torch.equal(convolve(inputs, weight)[:3], convolve(inputs[:3], weight))


def test_what_the_convolution_kernel_is_not_made_for_is_left_to_the_library() -> None:
    weight = maps(32, 32, 3, seed=1)
    assert takes(maps(2, 32, 32, seed=2), weight, 1)
    assert not takes(maps(2, 32, 32, seed=2), weight, 2)
    assert not takes(maps(2, 32, 16, seed=2), weight, 1)
    assert not takes(maps(0, 32, 32, seed=2), weight, 1)
    assert not takes(maps(2, 32, 32, seed=2).half(), weight.half(), 1)
    assert not takes(maps(2, 64, 32, seed=2), maps(64, 64, 3, seed=1), 1)
    assert not takes(maps(2, 32, 32, seed=2), maps(32, 32, 1, seed=1), 1)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_an_operator_has_a_kernel_that_computes_what_plain_torch_does(operator: Operator) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    assert wrong_operators([operator], device) == []
    for call in operator.examples(Draw(device)):
        assert operator.kernel(*call) is not NotImplemented


def test_a_kernel_that_cannot_be_compiled_leaves_the_work_to_torch_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*given: object) -> bytes:
        raise RuntimeError("error: no such option")

    inputs, weight = maps(2, 32, 32, seed=2), maps(32, 32, 3, seed=1)
    usual = kernel.convolution(inputs, weight, 1)
    monkeypatch.setattr(compiler, "disabled", {})
    monkeypatch.setattr(operators, "disabled", compiler.disabled)
    monkeypatch.setattr(compiler, "kept", broken)
    kernel._kernel.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"runs are slower: convolution\.cu could not be"):
            assert not takes(inputs, weight, 1)
        ours = kernel.convolution(inputs, weight, 1)
        torch.testing.assert_close(ours.float(), usual.float(), rtol=2**-7, atol=0.02)
        assert not operators.is_usable(inputs.get_device())
    finally:
        kernel._kernel.cache_clear()


def test_launches_of_a_layer_on_two_streams_have_counters_of_their_own() -> None:
    norm, stream = BatchNorm(64).cuda(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    device = norm.weight.device
    ours = batch_norm.counters_of(norm, device)
    with torch.cuda.stream(stream):
        beside = batch_norm.counters_of(norm, device)
    assert batch_norm.counters_of(norm, device) is ours is not beside
    assert batch_norm.counters_of(deepcopy(norm), device) is not ours
    assert ours.tolist() == beside.tolist() == [0] * 8
