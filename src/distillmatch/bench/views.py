"""How many weak and strong views this machine makes a second."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from distillmatch.views import Normalization, strong_views, view_key, weak_views

_GPU_BATCH = 65_536
_CPU_BATCH = 2_048


@dataclass(frozen=True)
class ViewsBenchmark:
    """Images a second of weak and strong views, and what they were measured on."""

    weak: float
    strong: float
    device: str
    threads: int
    image_size: int
    batch_size: int


def measure_views(
    images: NDArray[np.uint8], device: torch.device | str, seconds: float
) -> ViewsBenchmark:
    """Time both kinds of views on images (count, side, side, 3), about `seconds` for each."""
    if not len(images) or seconds <= 0:
        raise ValueError(f"nothing to measure: {len(images)} images, {seconds} seconds")
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    # A small data set is repeated: the batch size decides how busy a GPU is, the content does not.
    count = _GPU_BATCH if on_gpu else min(_CPU_BATCH, len(images))
    batch = np.ascontiguousarray(images[np.resize(np.arange(len(images)), count)])
    normalization = Normalization.of(batch)
    on_device = torch.from_numpy(batch).to(device).permute(0, 3, 1, 2)
    key = view_key(0, "benchmark")
    weak, strong = (
        count / _seconds(partial(make, on_device, key, normalization), device, seconds)
        for make in (weak_views, strong_views)
    )
    return ViewsBenchmark(
        weak=weak,
        strong=strong,
        device=torch.cuda.get_device_name(device)
        if on_gpu
        else platform.processor() or platform.machine(),
        threads=torch.get_num_threads(),
        image_size=batch.shape[1],
        batch_size=count,
    )


def _seconds(work: Callable[[], object], device: torch.device, limit: float) -> float:
    """Return the mean seconds of one call over about `limit` seconds; the first does not count."""
    work()
    _wait(device)
    start, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - start < limit:
        work()
        _wait(device)
        calls += 1
    return (time.perf_counter() - start) / calls


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
