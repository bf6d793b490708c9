"""A launch of a kernel, with a stand-in for the driver that reads what it is given."""

import ctypes
import threading
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.cuda import _utils

from distillmatch.fast.batch_statistics import counters_of
from distillmatch.fast.compiled import Argument, Kernel
from distillmatch.networks.normalization import BatchNorm

STREAM = 77


class Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_void_p), ("second", ctypes.c_int))


KINDS: tuple[Any, ...] = (
    ctypes.c_uint64,
    ctypes.c_int,
    ctypes.c_uint64,
    ctypes.c_float,
    Pair,
    ctypes.c_int,
)
"""What the kernel's source would say of its arguments."""


class Driver:
    """Notes how it is asked to launch, and what lies where the arguments are said to be."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.before: Callable[[], object] = lambda: None

    def cuLaunchKernel(self, *given: Any) -> int:
        assert given[-1] is None
        return self.note(False, *given[:-1])

    def cuLaunchCooperativeKernel(self, *given: Any) -> int:
        return self.note(True, *given)

    def note(self, together: bool, function: str, *given: Any) -> int:
        self.before()
        *shape, stream, pointers = given
        assert stream.value == STREAM
        values: list[Any] = []
        for kind, pointer in zip(KINDS, pointers, strict=True):
            read = kind.from_address(pointer)
            values.append((read.first, read.second) if isinstance(read, Pair) else read.value)
        self.launched.append((together, function, shape, values))
        return 0


@pytest.fixture(name="driver")
def driver_that_notes(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()

    class Loaded:
        func = "function"

        def set_shared_memory_config(self, shared_bytes: int) -> None:
            """Have no limits."""

    monkeypatch.setattr(_utils, "_cuda_load_module", lambda code, names: {names[0]: Loaded()})
    monkeypatch.setattr(_utils, "_get_gpu_runtime_library", lambda: driver)
    monkeypatch.setattr(_utils, "_check_cuda", lambda result: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    stream = "_cuda_getCurrentRawStream"
    monkeypatch.setattr(torch._C, stream, lambda device: STREAM, raising=False)
    return driver


def test_a_kernel_finds_every_argument_as_its_source_declares_it(driver: Driver) -> None:
    kernel, tensor = Kernel(b"", "name", 0), torch.zeros(3)
    first: list[Argument] = [tensor, -5, None, 0.1, Pair(1, 2), True]
    second: list[Argument] = [None, 7, tensor[1:], -1e300, Pair(3, -4), 2**31 - 1]
    kernel.launch((4, 2), 96, 1024, first)
    kernel.launch((1, 1), 32, 0, second, together=True)
    address, tenth = tensor.data_ptr(), ctypes.c_float(0.1).value
    assert driver.launched == [
        (False, "function", [4, 2, 1, 96, 1, 1, 1024], [address, -5, 0, tenth, (1, 2), 1]),
        (
            True,
            "function",
            [1, 1, 1, 32, 1, 1, 0],
            [0, 7, address + 4, -float("inf"), (3, -4), 2**31 - 1],
        ),
    ]


def test_launches_of_two_threads_do_not_share_the_place_of_their_arguments(driver: Driver) -> None:
    kernel, both = Kernel(b"", "name", 0), threading.Barrier(2, timeout=20)
    kernel.launch((1, 1), 32, 0, [None, 0, None, 0.0, Pair(0, 0), 0])
    driver.launched.clear()
    driver.before = both.wait

    def launch(number: int) -> None:
        for turn in range(3):
            kernel.launch((1, 1), 32, 0, [None, number, None, 0.0, Pair(0, number), turn])

    threads = [threading.Thread(target=launch, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = sorted((values[1], values[4][1], values[5]) for _, _, _, values in driver.launched)
    assert seen == [(number, number, turn) for number in (1, 2) for turn in range(3)]


def test_launches_of_a_layer_on_two_streams_do_not_share_what_their_programs_count_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those on one stream do; a copy of a layer shares nothing with it, not even numbers."""
    layer, another, device = BatchNorm(64), BatchNorm(64), torch.device("cpu")

    def counters(of: BatchNorm, stream: int) -> torch.Tensor:
        current = "_cuda_getCurrentRawStream"
        monkeypatch.setattr(torch._C, current, lambda device: stream, raising=False)
        return counters_of(of, device)

    step = counters(layer, 1)
    step += 5  # as in the course of a launch
    beside = counters(layer, 2)
    assert beside.tolist() == [0] * 8
    assert counters(layer, 1) is step
    assert counters(layer, 2) is beside
    assert counters(deepcopy(layer), 1).tolist() == counters(another, 1).tolist() == [0] * 8
