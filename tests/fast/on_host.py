"""Kernels in CUDA, compiled for the host with what tests/cuda_on_host makes of a GPU."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from distillmatch.fast.compiler import SOURCES

HOST = Path(__file__).parent / "cuda_on_host"
ROOM = 227 * 1024
"""Shared memory of a thread block on an H200."""


def built(
    folder: Path, name: str, constants: dict[str, int], builds_on: Sequence[str] = ()
) -> Path:
    """Compile a kernel for the host: its shared memory is an array there, its names are C++'s."""
    files = [SOURCES / f"{one}.cu" for one in (*builds_on, name)]
    source = "".join(file.read_text() for file in files)
    kernel = folder / "kernel.inc"
    kernel.write_text(
        source.replace("extern __shared__ uint4 memory[];", "").replace('extern "C"', "")
    )
    options = [f"-D{name}={value}" for name, value in constants.items()]
    command = ["g++", "-std=c++17", "-O1", f'-DKERNEL="{kernel}"', *options]
    subprocess.run([*command, HOST / f"{name}.cpp", "-o", folder / "program"], check=True)
    return folder / "program"


def as_bytes(values: Tensor) -> bytes:
    """Return bfloat16 numbers in the order of channels-last memory."""
    return values.permute(0, 2, 3, 1).contiguous().view(torch.int16).numpy().tobytes()
