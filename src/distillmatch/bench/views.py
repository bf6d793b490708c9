"""How many views a second, beside a plain Pillow loop over the same images."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distillmatch.views import Normalization, pillow_reference, strong_views, view_key, weak_views
from distillmatch.views.strong import draw_strong
from distillmatch.views.weak import draw_weak

_GPU_BATCH = 65_536
_CPU_BATCH = 2_048
_PILLOW_IMAGES = 512


@dataclass(frozen=True)
class ViewSpeed:
    """Images a second of one kind of view, here and in a Pillow loop on one CPU thread."""

    kind: str
    images_per_second: float
    pillow_images_per_second: float

    @property
    def ratio(self) -> float:
        """How many times faster than the Pillow loop."""
        return self.images_per_second / self.pillow_images_per_second


@dataclass(frozen=True)
class ViewsBenchmark:
    """The speed of weak and strong views, and what it was measured on."""

    weak: ViewSpeed
    strong: ViewSpeed
    device: str
    threads: int
    image_size: int
    batch_size: int


def measure_views(
    images: NDArray[np.uint8], device: torch.device | str, seconds: float
) -> ViewsBenchmark:
    """Time both kinds of views on images (count, side, side, 3), about `seconds` for each loop.

    The two sides take turns, so that other work on the machine slows both alike. The Pillow loop
    gets its random parameters for nothing; here drawing them is part of the time.
    """
    if not len(images) or seconds <= 0:
        raise ValueError(f"nothing to measure: {len(images)} images, {seconds} seconds")
    device = torch.device(device)
    limit = _GPU_BATCH if device.type == "cuda" else _CPU_BATCH
    # A small data set is repeated: the batch size decides how busy a GPU is, the content does not.
    rows = np.resize(np.arange(len(images)), limit if device.type == "cuda" else len(images))
    batch = np.ascontiguousarray(images[rows[:limit]])
    normalization = Normalization.of(batch)
    on_device = torch.from_numpy(batch).to(device).permute(0, 3, 1, 2)
    key = view_key(0, "benchmark")
    sample = batch[:_PILLOW_IMAGES]
    places = torch.arange(len(sample))
    weak_drawn = pillow_reference.weak_parameters(draw_weak(key, places))
    strong_drawn = pillow_reference.strong_parameters(draw_strong(key, places, batch.shape[1]))

    def weak_loop() -> None:
        for image, drawn in zip(sample, weak_drawn, strict=True):
            pillow_reference.weak_view(image, drawn, normalization)

    def strong_loop() -> None:
        for image, drawn in zip(sample, strong_drawn, strict=True):
            pillow_reference.strong_view(image, drawn, normalization)

    measure = partial(_measure, on_device, len(sample), seconds)
    return ViewsBenchmark(
        weak=measure("weak", lambda: weak_views(on_device, key, normalization), weak_loop),
        strong=measure("strong", lambda: strong_views(on_device, key, normalization), strong_loop),
        device=_name(device),
        threads=torch.get_num_threads(),
        image_size=batch.shape[1],
        batch_size=len(batch),
    )


def _measure(
    batch: Tensor,
    pillow_count: int,
    seconds: float,
    kind: str,
    ours: Callable[[], object],
    pillow: Callable[[], object],
) -> ViewSpeed:
    """Run both in turns until each has had its seconds; the first run of each does not count."""
    _timed(ours, batch.device)
    _timed(pillow, batch.device)
    ours_time = pillow_time = 0.0
    ours_runs = pillow_runs = 0
    while min(ours_time, pillow_time) < seconds:
        if ours_time <= pillow_time:
            ours_time += _timed(ours, batch.device)
            ours_runs += 1
        else:
            pillow_time += _timed(pillow, batch.device)
            pillow_runs += 1
    return ViewSpeed(
        kind=kind,
        images_per_second=ours_runs * len(batch) / ours_time,
        pillow_images_per_second=pillow_runs * pillow_count / pillow_time,
    )


def _timed(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds one call takes, a GPU's work included."""
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()
