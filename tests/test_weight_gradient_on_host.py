"""The general weight gradient's kernel, run thread by thread on the host, beside torch's own."""

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from on_host import ROOM, as_bytes, built
from torch import Tensor
from torch.nn.grad import conv2d_weight

from distillmatch.cuda import compiled
from distillmatch.networks.convolution import has_kernels
from distillmatch.networks.kernels import pointwise
from distillmatch.networks.kernels.general_weight_gradient import Layout

SMALL_ROOM = 99 * 1024
"""Shared memory of a program on a GPU for desktops."""


def drawn(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16()


def expected(maps: Tensor, gradient: Tensor, side: int, stride: int) -> Tensor:
    shape = [gradient.shape[1], maps.shape[1], side, side]
    made: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
        maps.float(), shape, gradient.float(), stride, side // 2
    )
    return made


@pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs g++ to compile the kernel for the host"
)
@pytest.mark.parametrize(
    ("channels_in", "channels_out", "side", "stride", "size", "images", "shares", "room"),
    [
        (32, 64, 3, 2, (16, 16), 6, 1, ROOM),
        (64, 128, 3, 2, (8, 8), 9, 1, ROOM),
        (32, 64, 3, 2, (32, 32), 1, 1, SMALL_ROOM),
        (16, 16, 3, 1, (8, 8), 9, 2, ROOM),
        (16, 32, 3, 2, (9, 13), 7, 3, ROOM),
        (3, 16, 3, 1, (7, 20), 4, 2, ROOM),
        (40, 24, 3, 1, (5, 3), 3, 1, ROOM),
        (10, 6, 3, 3, (11, 70), 2, 1, ROOM),
        (32, 64, 1, 2, (16, 16), 9, 3, ROOM),
        (16, 32, 1, 1, (9, 9), 3, 1, ROOM),
        (80, 70, 1, 1, (5, 5), 1, 1, ROOM),
        (5, 3, 1, 2, (7, 8), 3, 1, ROOM),
    ],
)
def test_the_general_kernel_is_torchs_weight_gradient(
    channels_in: int,
    channels_out: int,
    side: int,
    stride: int,
    size: tuple[int, int],
    images: int,
    shares: int,
    room: int,
    tmp_path: Path,
) -> None:
    layout = Layout(side, channels_in, channels_out, room)
    assert layout.stages >= 2 and layout.shared_bytes <= room
    height, width = size
    out_size = [(one - 1) // stride + 1 for one in size]
    maps = drawn(images, channels_in, height, width, seed=1)
    gradient = drawn(images, channels_out, *out_size, seed=2)
    program = built(tmp_path, "general_weight_gradient", layout.constants, ["add_up"])
    launched = [images, shares, layout.shared_bytes, layout.tiles]
    shape = [channels_in, channels_out, height, width, *out_size, stride, layout.count]
    finished = subprocess.run(
        [program, *map(str, launched + shape)],
        input=as_bytes(maps) + as_bytes(gradient),
        stdout=subprocess.PIPE,
        check=True,
    )
    wanted = expected(maps, gradient, side, stride)
    values = torch.frombuffer(bytearray(finished.stdout), dtype=torch.float32)[: wanted.numel()]
    result = values.view(channels_out, side, side, channels_in).permute(0, 3, 1, 2)
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("room", [ROOM, 163 * 1024])
@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("channels_in", [3, 8, 16, 32, 48, 640])
@pytest.mark.parametrize("channels_out", [10, 16, 32, 64, 640])
def test_there_is_room_for_any_number_of_channels(
    channels_in: int, channels_out: int, side: int, room: int
) -> None:
    layout = Layout(side, channels_in, channels_out, room)
    tile_out, tile_in = layout.tile
    assert layout.stages >= 2
    assert layout.shared_bytes <= room
    assert layout.tiles * tile_out * tile_in >= channels_in * channels_out
    assert layout.count % 4 == 0
    assert 0 <= layout.count - channels_out * side**2 * channels_in < 4


def test_few_images_are_shared_by_fewer_programs_and_none_goes_without_work() -> None:
    layout = Layout(3, 64, 128, ROOM)
    assert layout.tiles == 4
    assert layout.shares(320, 320 * 64) == 33
    assert layout.shares(64, 64 * 64) == 11
    assert layout.shares(2, 2 * 64) == 1
    assert Layout(3, 640, 640, ROOM).shares(320, 320 * 64) == 1


@pytest.mark.parametrize(("stride", "size"), [(1, (4, 5)), (2, (7, 8))])
def test_the_weight_gradient_of_a_matrix_product_is_torchs(
    stride: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def product(left: Tensor, right: Tensor, out_dtype: torch.dtype) -> Tensor:
        return left.to(out_dtype) @ right.to(out_dtype)

    monkeypatch.setattr(torch, "mm", product)  # that with a type of its own is CUDA's alone
    maps = drawn(3, 6, *size, seed=1)
    gradient = drawn(3, 4, *((one - 1) // stride + 1 for one in size), seed=2)
    ours = pointwise.weight_gradient(maps, gradient, stride)
    torch.testing.assert_close(ours, expected(maps, gradient, 1, stride))


@pytest.mark.parametrize(("major", "expected"), [(7, False), (8, True), (9, True)])
def test_kernels_are_made_for_cuda_devices_that_are_not_too_old(
    major: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(major=major)
    monkeypatch.setattr(compiled, "device_properties", lambda device: properties)
    assert has_kernels(torch.device("cuda", 0)) is expected
    assert not has_kernels(torch.device("cpu"))
