"""Kernels in CUDA, run thread by thread on the host, beside torch's own convolution."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from distillmatch.networks.kernels import compiled

HOST = Path(__file__).parent / "cuda_on_host"

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs g++ to compile the kernel for the host"
)


def built(folder: Path, constants: dict[str, int]) -> Path:
    """Compile the kernel for the host: its shared memory is an array there, its names are C++'s."""
    source = (compiled.SOURCES / "convolution.cu").read_text()
    kernel = folder / "kernel.inc"
    kernel.write_text(
        source.replace("extern __shared__ uint4 memory[];", "").replace('extern "C"', "")
    )
    options = [f"-D{name}={value}" for name, value in constants.items()]
    command = ["g++", "-std=c++20", "-O1", "-pthread", f'-DKERNEL="{kernel}"', *options]
    subprocess.run([*command, HOST / "convolution.cpp", "-o", folder / "program"], check=True)
    return folder / "program"


def as_bytes(values: Tensor) -> bytes:
    """Return bfloat16 numbers in the order of channels-last memory."""
    return values.permute(0, 2, 3, 1).contiguous().view(torch.int16).numpy().tobytes()


@pytest.mark.parametrize(
    ("channels_in", "channels_out", "width", "height", "transposed"),
    [
        (3, 16, 32, 16, False),
        (16, 32, 32, 8, False),
        (32, 32, 32, 16, False),
        (32, 32, 32, 16, True),
        (32, 16, 64, 8, True),
    ],
)
def test_the_convolution_kernel_is_torchs_convolution(
    channels_in: int, channels_out: int, width: int, height: int, transposed: bool, tmp_path: Path
) -> None:
    rows, images, blocks = 256 // width, 2, 3
    constants = {"CHANNELS_IN": channels_in, "CHANNELS_OUT": channels_out, "WIDTH": width}
    constants |= {"ROWS": rows, "WARPS": 4, "TRANSPOSED": int(transposed)}
    generator = torch.Generator().manual_seed(1)
    maps = torch.randn(images, channels_in, height, width, generator=generator).bfloat16()
    shape = (channels_in, channels_out) if transposed else (channels_out, channels_in)
    weight = torch.randn(*shape, 3, 3, generator=generator).bfloat16()
    finished = subprocess.run(
        [built(tmp_path, constants), str(images), str(height), str(blocks)],
        input=as_bytes(maps) + as_bytes(weight),
        stdout=subprocess.PIPE,
        check=True,
    )
    values = torch.frombuffer(bytearray(finished.stdout), dtype=torch.int16).view(torch.bfloat16)
    result = values.view(images, height, width, channels_out).permute(0, 3, 1, 2).float()
    convolution = functional.conv_transpose2d if transposed else functional.conv2d
    expected = convolution(maps.float(), weight.float(), padding=1)
    torch.testing.assert_close(result, expected, rtol=2**-8, atol=0.02)
