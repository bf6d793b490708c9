"""Kernels in CUDA, run thread by thread on the host, beside torch's own operations."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from normalized import activated_by_groups
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from distillmatch.fast import running_norm, weight_gradient
from distillmatch.fast.batch_norm import constants_of, kernel_groups, share_blocks
from distillmatch.fast.compiler import SOURCES
from distillmatch.fast.convolution import ADD_AFTER, ADD_BEFORE, Layout
from distillmatch.networks import StatisticsGroups

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs g++ to compile the kernel for the host"
)
HOST = Path(__file__).parent / "cuda_on_host"
ROOM = 227 * 1024
"""Shared memory of a thread block on an H200."""
RUNNING = "MOST", "THREADS", "MOST_THREADS", "TURNS"
Shape = tuple[int, int, int, int]
"""Channels in and out, height and width."""


class Drawn:
    """Random numbers by shape, the same for every test."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)


def ran(
    folder: Path,
    name: str,
    constants: dict[str, int],
    numbers: Sequence[object],
    given: Sequence[Tensor],
    activates: bool = False,
) -> Tensor:
    """Compile a kernel for the host, with what cuda_on_host makes of a GPU; return its bytes.

    Its shared memory is an array there, its names are C++'s.
    """
    files = [SOURCES / f"{one}.cu" for one in (*["activation"] * activates, name)]
    source = "".join(file.read_text() for file in files)
    kernel = folder / "kernel.inc"
    kernel.write_text(
        source.replace("extern __shared__ uint4 memory[];", "").replace('extern "C"', "")
    )
    options = [f"-D{name}={value}" for name, value in constants.items()]
    command = ["g++", "-std=c++17", "-O1", f'-DKERNEL="{kernel}"', *options]
    subprocess.run([*command, HOST / f"{name}.cpp", "-o", folder / "program"], check=True)
    finished = subprocess.run(
        [folder / "program", *map(str, numbers)],
        input=b"".join(bytes(one.contiguous().view(torch.uint8).numpy()) for one in given),
        stdout=subprocess.PIPE,
        check=True,
    )
    return torch.frombuffer(bytearray(finished.stdout), dtype=torch.uint8)


def channels_last(values: Tensor) -> Tensor:
    return values.permute(0, 2, 3, 1)


class Coefficients(NamedTuple):
    scales: Tensor
    shifts: Tensor


class Convolved(NamedTuple):
    """What the convolution kernel is given, and what it makes of that."""

    maps: Tensor
    weight: Tensor
    by: Coefficients
    beside: Tensor
    passed: Tensor
    result: Tensor
    normalized: Tensor
    signs: Tensor


def convolved(folder: Path, layout: Layout, images: int, blocks: int) -> Convolved:
    """Run the convolution kernel on numbers that depend on the shapes alone."""
    drawn, channels_in, channels_out = Drawn(), layout.channels_in, layout.channels_out
    maps = drawn(images, channels_in, layout.height, layout.width).bfloat16()
    inside = (channels_in, channels_out) if layout.transposed else (channels_out, channels_in)
    weight = drawn(*inside, 3, 3).bfloat16()
    by = Coefficients(drawn(channels_out), drawn(channels_out))
    shape = images, channels_out, layout.height, layout.width
    beside, activated = drawn(*shape).bfloat16(), drawn(*shape).relu().bfloat16()
    numbers = images, blocks, layout.shared_bytes
    given = [channels_last(maps), channels_last(weight), *by, channels_last(beside)]
    given.append(signs_of(activated))
    made = ran(folder, "convolution", layout.constants, numbers, given, activates=True)
    halves, signs = made[: 4 * beside.numel()].view(torch.bfloat16), made[4 * beside.numel() :]
    result, normalized = halves.view(2, images, *shape[2:], channels_out).permute(0, 1, 4, 2, 3)
    return Convolved(maps, weight, by, beside, activated > 0, result, normalized, signs)


def signs_of(activated: Tensor) -> Tensor:
    """Return a byte for eight channels of a pixel: the bits of the even ones, then of the odd."""
    above = (activated.permute(0, 2, 3, 1).flatten() > 0).int()
    places = torch.tensor([[1, 16], [2, 32], [4, 64], [8, 128]])
    packed = (above[: len(above) // 8 * 8].view(-1, 4, 2) * places).sum((1, 2))
    return packed.to(torch.uint8)


def by_channel(values: Tensor) -> Tensor:
    """Double precision, in which a product and a sum are rounded once when they are made float."""
    return values.double()[:, None, None]


@pytest.mark.parametrize(
    ("shape", "images", "blocks", "transposed"),
    [
        ((3, 16, 30, 32), 5, 1, False), ((16, 3, 4, 32), 5, 2, True),
        ((16, 32, 4, 32), 3, 1, False), ((32, 32, 14, 32), 3, 1, False),
        ((32, 32, 4, 32), 3, 2, True), ((32, 16, 6, 64), 3, 2, True),
        ((64, 64, 8, 16), 2, 1, False), ((64, 64, 8, 16), 2, 2, True),
    ],
)  # fmt: skip
def test_the_convolution_kernel_is_torchs_convolution(
    shape: Shape, images: int, blocks: int, transposed: bool, tmp_path: Path
) -> None:
    layout = Layout(*shape, transposed, ROOM)
    made = convolved(tmp_path, layout, images, blocks)
    convolve = functional.conv_transpose2d if transposed else functional.conv2d
    expected = convolve(made.maps.float(), made.weight.float(), padding=1)
    torch.testing.assert_close(made.result.float(), expected, rtol=2**-8, atol=0.02)


@pytest.mark.parametrize(
    ("shape", "images", "blocks", "adds"),
    [
        ((3, 16, 10, 32), 3, 1, 0), ((16, 16, 4, 64), 2, 1, ADD_BEFORE),
        ((16, 32, 4, 32), 3, 2, 0), ((32, 32, 6, 32), 2, 1, ADD_BEFORE),
        ((64, 64, 4, 16), 3, 2, ADD_BEFORE),
    ],
)  # fmt: skip
def test_the_convolution_kernel_normalizes_and_activates_what_it_stores(
    shape: Shape, images: int, blocks: int, adds: int, tmp_path: Path
) -> None:
    plain = Layout(*shape, False, ROOM)
    made = convolved(tmp_path, replace(plain, activates=True, adds=adds), images, blocks)
    normalized = convolved(tmp_path, plain, images, blocks).result
    if adds:
        normalized = (normalized.float() + made.beside.float()).bfloat16()
    scales, shifts = map(by_channel, made.by)
    expected = (normalized.double() * scales + shifts).float().relu().bfloat16()
    assert torch.equal(made.normalized, normalized)
    assert torch.equal(made.result, expected)
    assert torch.equal(made.signs, signs_of(expected))


@pytest.mark.parametrize(
    ("shape", "images", "blocks", "adds"),
    [
        ((16, 16, 4, 32), 2, 1, ADD_AFTER), ((32, 16, 6, 32), 3, 2, ADD_BEFORE),
        ((32, 32, 6, 32), 2, 1, 0), ((32, 32, 4, 64), 2, 1, ADD_AFTER),
        ((64, 64, 4, 16), 3, 2, ADD_AFTER),
    ],
)  # fmt: skip
def test_the_convolution_kernel_goes_backward_through_normalization_and_relu(
    shape: Shape, images: int, blocks: int, adds: int, tmp_path: Path
) -> None:
    plain = Layout(*shape, True, ROOM)
    made = convolved(tmp_path, replace(plain, activates=True, adds=adds), images, blocks)
    gradient = convolved(tmp_path, plain, images, blocks).result
    if adds == ADD_BEFORE:
        gradient = (gradient.float() + made.beside.float()).bfloat16()
    expected = gradient.double() * made.passed * by_channel(made.by.scales)
    if adds == ADD_AFTER:
        expected = expected + made.beside.double()
    assert torch.equal(made.result, expected.float().bfloat16())


@pytest.mark.parametrize(
    ("channels", "images", "pixels", "blocks"), [(16, 3, 10, 1), (48, 5, 70, 3), (640, 2, 9, 2)]
)
def test_the_kernels_by_running_statistics_are_torchs_normalization(
    channels: int, images: int, pixels: int, blocks: int, tmp_path: Path
) -> None:
    groups, others = channels // 8, 24
    threads = max(1, running_norm.THREADS // groups) * groups
    assert images * pixels * groups <= blocks * threads * running_norm.TURNS
    drawn = Drawn()
    layers = drawn(4, channels + others)
    layers[3] = layers[3].square() + 0.1
    maps, shortcut, given, of_sum = drawn(4, images, pixels, channels).bfloat16()
    of_means = drawn(images, channels).bfloat16()
    constants = {name: getattr(running_norm, name) for name in RUNNING}
    sizes = images, pixels, channels, threads, blocks, others
    given_all = layers, maps, shortcut, given, of_sum, of_means
    made = ran(tmp_path, "running_norm", constants, sizes, given_all, activates=True)
    count = maps.numel()
    coefficients, halves, signs, backs = made.split(  # type: ignore[no-untyped-call]
        [8 * (channels + others), 4 * count, count // 8, 4 * count]
    )
    scales, shifts = coefficients.view(torch.float32).view(2, -1)
    weight, bias, mean, variance = layers
    epsilons = torch.cat([torch.full((channels,), 1e-5), torch.full((others,), 1e-3)])
    torch.testing.assert_close(scales, weight / (variance + epsilons).sqrt())
    torch.testing.assert_close(shifts, bias - mean * scales)

    scales, shifts = scales[:channels].double(), shifts[:channels].double()
    values = torch.cat([halves, backs]).view(torch.bfloat16).view(4, *maps.shape)
    summed, activated, of_maps, spread = values
    expected_sum = (maps.float() + shortcut.float()).bfloat16()
    expected = (expected_sum.double() * scales + shifts).float().relu().bfloat16()
    assert torch.equal(summed, expected_sum)
    assert torch.equal(activated, expected)
    assert torch.equal(signs, signs_of(expected.permute(0, 2, 1)[..., None]))
    passed = (expected > 0) * scales
    assert torch.equal(of_maps, (given.double() * passed + of_sum).float().bfloat16())
    assert torch.equal(spread, (of_means.double()[:, None] * passed).float().bfloat16())


@pytest.mark.parametrize(
    ("channels_in", "channels_out", "width", "height", "images", "shares"),
    [
        (3, 16, 32, 30, 3, 1), (16, 32, 32, 16, 2, 1), (32, 32, 32, 4, 3, 2),
        (32, 32, 64, 10, 2, 1), (64, 64, 16, 4, 5, 9), (128, 128, 8, 4, 4, 1),
    ],
)  # fmt: skip
def test_the_weight_gradient_kernel_is_torchs_weight_gradient(
    channels_in: int,
    channels_out: int,
    width: int,
    height: int,
    images: int,
    shares: int,
    tmp_path: Path,
) -> None:
    layout = weight_gradient.Layout(channels_in, channels_out, height, width)
    drawn = Drawn()
    maps = drawn(images, channels_in, height, width).bfloat16()
    gradient = drawn(images, channels_out, height, width).bfloat16()
    numbers, given = (images, shares, layout.shared_bytes), map(channels_last, (maps, gradient))
    made = ran(tmp_path, "weight_gradient", layout.constants, numbers, [*given])
    values = made.view(torch.float32)
    result = values.view(channels_out, 3, 3, channels_in).permute(0, 3, 1, 2)
    expected = conv2d_weight(  # type: ignore[no-untyped-call]
        maps.float(), list(result.shape), gradient.float(), padding=1
    )
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("channels", "block_channels", "sizes", "updating", "adds", "room"),
    [
        (32, 32, (150, 150), 1, True, 1000), (64, 32, (97, 203), 2, False, 20),
        (16, 16, (300,), 1, True, 0), (32, 32, (120, 80, 100), 3, True, 30),
        (32, 16, (90, 60, 50, 100), 2, False, 1000), (16, 16, (90, 60, 50, 100), 0, True, 10),
    ],
)  # fmt: skip
def test_the_normalization_kernels_are_torchs_normalization_of_each_group(
    channels: int,
    block_channels: int,
    sizes: tuple[int, ...],
    updating: int,
    adds: bool,
    room: int,
    tmp_path: Path,
) -> None:
    rows = 300
    groups = kernel_groups(sizes, share_blocks(7, sizes))
    drawn = Drawn()
    maps, shortcut = drawn(rows, channels).bfloat16(), drawn(rows, channels).bfloat16()
    gradient, total_gradient = drawn(rows, channels).bfloat16(), drawn(rows, channels).bfloat16()
    weight, bias, mean, variance = drawn(4, channels)
    variance = variance.square()
    sums = [shortcut] if adds else []
    of_sums = [total_gradient] if adds else []
    given = [maps, *sums, weight, bias, mean, variance, gradient, *of_sums]
    constants = constants_of(block_channels, threads=64)
    numbers = [channels, room, int(adds), updating, *groups.ends, *groups.blocks]
    made = ran(tmp_path, "batch_norm", constants, numbers, given)
    halves, floats = made[: 6 * rows * channels], made[6 * rows * channels :]
    summed, activated, of_maps = halves.view(torch.bfloat16).view(3, rows, channels)
    floats = floats.view(torch.float32).view(4, channels)
    updated_mean, updated_variance, of_weight, of_bias = floats

    expected_sum = (maps.float() + shortcut.float()).bfloat16() if adds else maps
    assert torch.equal(summed, expected_sum)
    leaf = expected_sum.float().requires_grad_()
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    expected = activated_by_groups(
        leaf, StatisticsGroups(sizes, updating), (weight, bias, mean, variance)
    )
    expected.backward(gradient.float())  # type: ignore[no-untyped-call]
    assert leaf.grad is not None and weight.grad is not None and bias.grad is not None
    torch.testing.assert_close(activated.float(), expected.detach(), rtol=2**-7, atol=1e-5)
    torch.testing.assert_close(updated_mean, mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(updated_variance, variance, rtol=1e-5, atol=1e-6)
    wanted = leaf.grad + (total_gradient.float() if adds else 0)
    torch.testing.assert_close(of_maps.float(), wanted, rtol=2**-7, atol=0.01)
    torch.testing.assert_close(of_weight, weight.grad, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(of_bias, bias.grad, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("longest", [0.0, 1.5, 1000.0])
def test_the_kernels_over_parameters_are_torchs_descent_and_rounding(
    longest: float, tmp_path: Path
) -> None:
    sizes = [130, 64, 2, 300]
    drawn = Drawn()
    given = [drawn(3, size) for size in sizes]
    constants = {"MOST": 8, "PIECE": 128, "THREADS": 32}
    made = ran(tmp_path, "parameters", constants, [longest, *sizes], given)
    parts = made.split([10 * size for size in sizes])  # type: ignore[no-untyped-call]
    parameters = [torch.nn.Parameter(one[0].clone()) for one in given]
    for parameter, one in zip(parameters, given, strict=True):
        parameter.grad = one[1].clone()
    if longest:
        torch.nn.utils.clip_grad_norm_(parameters, longest)
    for weight, one, part in zip(parameters, given, parts, strict=True):
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.01)
        optimizer.state[weight]["momentum_buffer"] = one[2].clone()
        optimizer.step()
        size = one.shape[1]
        weights, velocities = part[: 8 * size].view(torch.float32).view(2, size)
        torch.testing.assert_close(weights, weight.detach())
        torch.testing.assert_close(velocities, optimizer.state[weight]["momentum_buffer"])
        assert torch.equal(part[8 * size :].view(torch.bfloat16), weights.bfloat16())
