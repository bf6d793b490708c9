"""How many weak and strong views this machine makes a second."""

import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distillmatch.views import Normalization, strong_views, view_key, weak_views


def measure_views(
    images: NDArray[np.uint8], device: torch.device, seconds: float
) -> dict[str, Any]:
    """Time both kinds of views on images (count, side, side, 3), about `seconds` for each."""
    on_gpu = device.type == "cuda"
    # A small data set is repeated: the batch size decides how busy a GPU is, the content does not.
    count = 65_536 if on_gpu else min(2_048, len(images))
    batch = np.ascontiguousarray(images[np.resize(np.arange(len(images)), count)])
    normalization, key = Normalization.of(batch), view_key(0, "benchmark")
    on_device = torch.from_numpy(batch).to(device).permute(0, 3, 1, 2)

    def speed(make: Callable[..., Any]) -> float:
        def work() -> None:
            make(on_device, key, normalization)
            if on_gpu:
                torch.cuda.synchronize(device)

        mean_seconds(work, 0.0)  # the first calls take longer
        return count / mean_seconds(work, seconds)

    processor = platform.processor() or platform.machine()
    return {
        "weak": speed(weak_views),
        "strong": speed(strong_views),
        "device": torch.cuda.get_device_name(device) if on_gpu else processor,
        "threads": torch.get_num_threads(),
        "image_size": batch.shape[1],
        "batch_size": count,
    }


def mean_seconds(work: Callable[[], Any], seconds: float) -> float:
    """Return the mean seconds that some work takes, done at least twice."""
    started, count = time.perf_counter(), 0
    while count < 2 or time.perf_counter() - started < seconds:
        work()
        count += 1
    return (time.perf_counter() - started) / count
