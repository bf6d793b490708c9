"""Sources compile for several GPUs, machine code is kept, and arguments lie where they must."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from distillmatch.fast import batch_norm, compiler, convolution, parameters, running_norm
from distillmatch.fast import weight_gradient as gradient
from distillmatch.fast.compiler import Arguments, kept, source_and_options

SHARED_BYTES = {"80": 163 * 1024, "89": 99 * 1024, "90": 227 * 1024}
"""Shared memory of a thread block, by compute capability."""


def sources(room: int) -> Iterator[tuple[list[str], dict[str, int]]]:
    """Return each source with constants of a kernel that fits the room."""
    running = {"MOST": running_norm.MOST, "THREADS": 256, "MOST_THREADS": 512, "TURNS": 4}
    yield ["batch_norm.cu"], batch_norm.constants_of(32)
    forward = convolution.Layout(3, 16, 32, 32, False, room)
    backward = convolution.Layout(32, 32, 32, 32, True, room, True, convolution.ADD_AFTER)
    for layout in (forward, backward):
        assert layout.warp_groups > 0
        yield ["activation.cu", "convolution.cu"], layout.constants
    yield ["weight_gradient.cu"], gradient.Layout(64, 64, 16, 16).constants
    yield ["activation.cu", "running_norm.cu"], running
    yield ["parameters.cu"], {"MOST": parameters.MOST, "PIECE": 4096, "THREADS": 256}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_all_sources_compile(capability: str, tmp_path: Path) -> None:
    seen = {"primitives.cu"}
    for files, constants in sources(SHARED_BYTES[capability]):
        source, options = source_and_options(files, constants, capability)
        options.remove("-default-device")  # of NVRTC alone
        (tmp_path / "kernel.cu").write_text(source)
        command = ["nvcc", "-cubin", *options, "kernel.cu", "-o", "kernel.cubin"]
        finished = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        seen |= set(files)
    assert seen == {file.name for file in Path(str(compiler.SOURCES)).iterdir()}


def test_what_was_made_is_found_again_and_nothing_else_is_taken_for_it(cache: Path) -> None:
    made: list[str] = []

    def make(text: str) -> bytes:
        made.append(text)
        return text.encode()

    texts = ["one, -DA=1", "one, -DA=1", "one, -DA=2", "other, -DA=1"]
    assert [kept(text, lambda text=text: make(text)) for text in texts] == [  # type: ignore[misc]
        text.encode() for text in texts
    ]
    assert made == texts[1:]
    assert len(list((cache / "kernels").iterdir())) == 3


@pytest.mark.parametrize("damage", [b"", b"cut", b"x" * 40])
def test_damaged_machine_code_is_made_again(cache: Path, damage: bytes) -> None:
    assert kept("one", lambda: b"code") == b"code"
    (file,) = (cache / "kernels").iterdir()
    file.write_bytes(damage)
    assert kept("one", lambda: b"new code") == b"new code"
    assert kept("one", lambda: b"never made") == b"new code"


class Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_void_p), ("second", ctypes.c_int))


def read(arguments: Arguments, *kinds: Any) -> list[Any]:
    """Read arguments as a kernel declares them."""
    return [
        kind.from_address(pointer) for kind, pointer in zip(kinds, arguments.pointers, strict=True)
    ]


def test_a_kernel_finds_each_argument_as_it_declares_it() -> None:
    tensor, pair = torch.zeros(3), Pair(1, 2)
    address, number, real = ctypes.c_uint64, ctypes.c_int, ctypes.c_float
    kinds = address, number, address, real, Pair, number
    arguments = Arguments(6)
    arguments.fill([tensor, -5, None, 0.1, pair, True])
    *found, last = read(arguments, *kinds)
    assert [one.value for one in found[:4]] == [tensor.data_ptr(), -5, 0, real(0.1).value]
    assert (found[4].first, found[4].second, last.value) == (1, 2, 1)
    arguments.fill([None, 7, tensor[1:], -1e300, Pair(3, -4), 2**31 - 1])
    *found, last = read(arguments, *kinds)
    assert [one.value for one in found[:4]] == [0, 7, tensor.data_ptr() + 4, -float("inf")]
    assert last.value == 2**31 - 1
