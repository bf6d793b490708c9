"""How many weak and strong views this machine makes a second."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

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
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    # A small data set is repeated: the batch size decides how busy a GPU is, the content does not.
    count = _GPU_BATCH if on_gpu else min(_CPU_BATCH, len(images))
    batch = np.ascontiguousarray(images[np.resize(np.arange(len(images)), count)])
    normalization, key = Normalization.of(batch), view_key(0, "benchmark")
    on_device = torch.from_numpy(batch).to(device).permute(0, 3, 1, 2)

    def wait() -> None:
        if on_gpu:
            torch.cuda.synchronize(device)

    def speed(make: Callable[..., Any]) -> float:
        work = partial(make, on_device, key, normalization)
        mean_seconds(wait, work, 0.0)  # the first calls take longer
        return count / mean_seconds(wait, work, seconds)

    return ViewsBenchmark(
        weak=speed(weak_views),
        strong=speed(strong_views),
        device=torch.cuda.get_device_name(device)
        if on_gpu
        else platform.processor() or platform.machine(),
        threads=torch.get_num_threads(),
        image_size=batch.shape[1],
        batch_size=count,
    )


def mean_seconds(wait: Callable[[], None], work: Callable[[], Any], seconds: float) -> float:
    """Return the mean seconds of some work until it is done, for which one has to `wait`."""
    started, count = time.perf_counter(), 0
    while count < 2 or time.perf_counter() - started < seconds:
        work()
        wait()
        count += 1
    return (time.perf_counter() - started) / count
