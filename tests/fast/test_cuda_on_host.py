"""Kernels in CUDA, run thread by thread on the host, beside torch's own operations."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from normalized import activated_by_groups
from on_host import as_bytes, built
from torch import Tensor
from torch.nn.grad import conv2d_weight

from distillmatch.fast import weight_gradient
from distillmatch.fast.batch_norm import constants_of, kernel_groups, share_blocks
from distillmatch.networks import StatisticsGroups

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs g++ to compile the kernel for the host"
)


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
    generator = torch.Generator().manual_seed(1)
    maps = torch.randn(images, channels_in, height, width, generator=generator).bfloat16()
    gradient = torch.randn(images, channels_out, height, width, generator=generator).bfloat16()
    program = built(tmp_path, "weight_gradient", layout.constants)
    finished = subprocess.run(
        [program, str(images), str(shares), str(layout.shared_bytes)],
        input=as_bytes(maps) + as_bytes(gradient),
        stdout=subprocess.PIPE,
        check=True,
    )
    values = torch.frombuffer(bytearray(finished.stdout), dtype=torch.float32)
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
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    maps, shortcut = drawn(rows, channels).bfloat16(), drawn(rows, channels).bfloat16()
    gradient, total_gradient = drawn(rows, channels).bfloat16(), drawn(rows, channels).bfloat16()
    weight, bias, mean, variance = drawn(4, channels)
    variance = variance.square()
    sums = [shortcut] if adds else []
    given = [
        maps,
        *sums,
        weight,
        bias,
        mean,
        variance,
        gradient,
        *([total_gradient] if adds else []),
    ]
    constants = constants_of(block_channels, threads=64)
    program = built(tmp_path, "batch_norm", constants)
    numbers = [channels, room, int(adds), updating, *groups.ends, *groups.blocks]
    finished = subprocess.run(
        [program, *map(str, numbers)],
        input=b"".join(bytes(one.contiguous().view(torch.uint8).numpy()) for one in given),
        stdout=subprocess.PIPE,
        check=True,
    )
    made = torch.frombuffer(bytearray(finished.stdout), dtype=torch.uint8)
    halves, floats = made[: 6 * rows * channels], made[6 * rows * channels :]
    summed, activated, of_maps = halves.view(torch.bfloat16).view(3, rows, channels)
    updated_mean, updated_variance, of_weight, of_bias = floats.view(torch.float32).view(
        4, channels
    )

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
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(3, size, generator=generator) for size in sizes]
    program = built(tmp_path, "parameters", {"MOST": 8, "PIECE": 128, "THREADS": 32})
    finished = subprocess.run(
        [program, str(longest), *map(str, sizes)],
        input=b"".join(bytes(one.view(torch.uint8).numpy()) for one in given),
        stdout=subprocess.PIPE,
        check=True,
    )
    made = torch.frombuffer(bytearray(finished.stdout), dtype=torch.uint8)
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
