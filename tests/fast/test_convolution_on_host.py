"""The kernels of convolutions and of frozen normalization, run thread by thread on the host."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from on_host import ROOM, as_bytes, built
from torch import Tensor
from torch.nn import functional

from distillmatch.fast import running_norm
from distillmatch.fast.convolution import ADD_AFTER, ADD_BEFORE, Layout

RUNNING = "MOST", "THREADS", "MOST_THREADS", "TURNS"

Shape = tuple[int, int, int, int]
"""Channels in and out, height and width."""

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs g++ to compile the kernel for the host"
)


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
    signs: bytes


def convolved(folder: Path, layout: Layout, images: int, blocks: int) -> Convolved:
    """Run the convolution kernel on numbers that depend on the shapes alone."""
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    channels_in, channels_out = layout.channels_in, layout.channels_out
    maps = drawn(images, channels_in, layout.height, layout.width).bfloat16()
    inside = (channels_in, channels_out) if layout.transposed else (channels_out, channels_in)
    weight = drawn(*inside, 3, 3).bfloat16()
    by = Coefficients(drawn(channels_out), drawn(channels_out))
    shape = images, channels_out, layout.height, layout.width
    beside, activated = drawn(*shape).bfloat16(), drawn(*shape).relu().bfloat16()
    numbers = b"".join(bytes(one.view(torch.uint8).numpy()) for one in by)
    program = built(folder, "convolution", layout.constants, ["activation"])
    finished = subprocess.run(
        [program, str(images), str(blocks), str(layout.shared_bytes)],
        input=b"".join(
            [as_bytes(maps), as_bytes(weight), numbers, as_bytes(beside), signs_of(activated)]
        ),
        stdout=subprocess.PIPE,
        check=True,
    )
    count = beside.numel()
    halves = torch.frombuffer(bytearray(finished.stdout[: 4 * count]), dtype=torch.bfloat16)
    result, normalized = halves.view(2, images, *shape[2:], channels_out).permute(0, 1, 4, 2, 3)
    signs = finished.stdout[4 * count :]
    return Convolved(maps, weight, by, beside, activated > 0, result, normalized, signs)


def signs_of(activated: Tensor) -> bytes:
    """Return a byte for eight channels of a pixel: the bits of the even ones, then of the odd."""
    above = (activated.permute(0, 2, 3, 1).flatten() > 0).int()
    places = torch.tensor([[1, 16], [2, 32], [4, 64], [8, 128]])
    packed = (above[: len(above) // 8 * 8].view(-1, 4, 2) * places).sum((1, 2))
    return bytes(packed.to(torch.uint8).numpy())


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
    assert made.signs == signs_of(expected)


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
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    layers = drawn(4, channels + others)
    layers[3] = layers[3].square() + 0.1
    maps, shortcut, given, of_sum = drawn(4, images, pixels, channels).bfloat16()
    of_means = drawn(images, channels).bfloat16()
    constants = {name: getattr(running_norm, name) for name in RUNNING}
    program = built(tmp_path, "running_norm", constants, ["activation"])
    sizes = images, pixels, channels, threads, blocks, others
    tensors = layers, maps, shortcut, given, of_sum, of_means
    finished = subprocess.run(
        [program, *map(str, sizes)],
        input=b"".join(bytes(one.contiguous().view(torch.uint8).numpy()) for one in tensors),
        stdout=subprocess.PIPE,
        check=True,
    )
    made = torch.frombuffer(bytearray(finished.stdout), dtype=torch.uint8)
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
    halves = bytes(halves.numpy()), bytes(backs.numpy())
    summed, activated, of_maps, spread = torch.frombuffer(
        bytearray(b"".join(halves)), dtype=torch.bfloat16
    ).view(4, *maps.shape)
    expected_sum = (maps.float() + shortcut.float()).bfloat16()
    expected = (expected_sum.double() * scales + shifts).float().relu().bfloat16()
    assert torch.equal(summed, expected_sum)
    assert torch.equal(activated, expected)
    assert bytes(signs.numpy()) == signs_of(expected.permute(0, 2, 1)[..., None])
    passed = (expected > 0) * scales
    assert torch.equal(of_maps, (given.double() * passed + of_sum).float().bfloat16())
    assert torch.equal(spread, (of_means.double()[:, None] * passed).float().bfloat16())
