"""Sources compile for several GPUs, machine code is kept, and arguments lie where they must."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from distillmatch.fast import batch_norm, compiler, convolution, parameters, running_norm
from distillmatch.fast import weight_gradient as gradient
from distillmatch.fast.compiler import kept, source_and_options

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
