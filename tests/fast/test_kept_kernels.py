"""Kernels in CUDA are compiled once and kept in the user's cache; a stand-in is the compiler."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distillmatch.fast import compiled

FOLDER = "fast/cuda"
WANTED: tuple[str, list[str], dict[str, int], int] = ("convolution.cu", ["convolve"], {}, 50_000)


class Compiler:
    """Speaks as NVRTC does, and counts what it compiles."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.compiled: list[list[bytes]] = []

    def nvrtcVersion(self, major: Any, minor: Any) -> None:
        major._obj.value, minor._obj.value = 13, 0

    def nvrtcCreateProgram(self, *given: Any) -> None:
        """Have nothing to prepare."""

    def nvrtcCompileProgram(self, program: Any, count: int, options: Any) -> int:
        self.compiled.append(list(options))
        return int(self.refuses)

    def nvrtcGetCUBINSize(self, program: Any, size: Any) -> None:
        size._obj.value = 4

    def nvrtcGetCUBIN(self, program: Any, buffer: Any) -> None:
        buffer.raw = b"\0ab\0"

    def nvrtcGetProgramLogSize(self, program: Any, size: Any) -> None:
        size._obj.value = 6

    def nvrtcGetProgramLog(self, program: Any, buffer: Any) -> None:
        buffer.raw = b"wrong\0"

    def nvrtcDestroyProgram(self, program: Any) -> None:
        """Have nothing to end."""


@pytest.fixture(name="cache")
def users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "distillmatch" / "kernels"


def test_what_was_compiled_is_found_again_and_nothing_else_is_taken_for_it(cache: Path) -> None:
    compiler = Compiler()
    for source, option in (
        ("one", "-DA=1"),
        ("one", "-DA=1"),
        ("one", "-DA=2"),
        ("other", "-DA=1"),
    ):
        assert compiled._kept(compiler, source, [option]) == b"\0ab\0"
    assert compiler.compiled == [[b"-DA=1"], [b"-DA=2"], [b"-DA=1"]]
    assert len(list(cache.iterdir())) == 3


def test_what_the_compiler_says_against_a_kernel_is_told(cache: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^wrong$"):
        compiled._kept(Compiler(refuses=True), "one", [])
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_no_reason_to_go_without_a_kernel(cache: Path) -> None:
    cache.parent.write_text("a file where a folder should be")
    assert compiled._kept(Compiler(), "one", []) == b"\0ab\0"


def test_without_a_home_a_kernel_is_compiled_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "user_cache", lambda: None)
    compiler = Compiler()
    for _ in range(2):
        assert compiled._kept(compiler, "one", []) == b"\0ab\0"
    assert len(compiler.compiled) == 2


@pytest.mark.parametrize(("major", "room"), [(7, 100_000), (9, 40_000)])
def test_a_device_that_is_too_old_or_too_small_goes_without_a_kernel_silently(
    major: int, room: int, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    properties = SimpleNamespace(major=major, shared_memory_per_block_optin=room)
    monkeypatch.setattr(compiled, "device_properties", lambda device: properties)
    assert compiled.load_if_possible(FOLDER, 0, *WANTED, "cuDNN's is used") is None
    assert not recwarn.list


def test_a_kernel_that_cannot_be_loaded_leaves_its_work_to_others_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*given: object) -> None:
        raise OSError("no compiler")

    properties = SimpleNamespace(major=9, shared_memory_per_block_optin=100_000)
    monkeypatch.setattr(compiled, "device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(compiled, "load_kernels", broken)
    with pytest.warns(
        UserWarning, match=r"^convolution\.cu could not be compiled, cuDNN's is used: no compiler$"
    ):
        assert compiled.load_if_possible(FOLDER, 0, *WANTED, "cuDNN's is used") is None
