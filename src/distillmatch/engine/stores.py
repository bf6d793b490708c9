"""Where a task's images lie while it is learned: on the device, or where they come from.

Either way images are had in two strides. `fetch` is the host's: it may run in a thread of its own,
ahead of time. `deliver` is the device's, and makes a tensor of what was fetched.
"""

import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distillmatch.engine.device import Placement
from distillmatch.sources.dataset import ImageRows, MappedRows

Rows = NDArray[np.int64]

GPU_SHARE = 4
"""One part in so many of a GPU's memory is for images that stay there."""
CPU_BYTES = 2 * 2**30
READERS = 8
"""Threads that read from disk at once: a drive is fast only if it is asked for much at a time."""
_FEW = 256


class ResidentStore:
    """Images of a task, by number, that lie on the device."""

    def __init__(self, parts: Sequence[ImageRows], placement: Placement) -> None:
        self.placement = placement
        together = np.concatenate([np.asarray(part) for part in parts])
        self.pixels = placement.tensor(together).permute(0, 3, 1, 2)

    @property
    def side(self) -> int:
        """The side of the images in pixels."""
        return self.pixels.shape[2]

    def __len__(self) -> int:
        return len(self.pixels)

    def fetch(self, rows: Rows) -> Tensor:
        """Do what the host can do beforehand: nothing, so return the numbers themselves."""
        return torch.from_numpy(rows)

    def deliver(self, fetched: Tensor) -> Tensor:
        """Return what was fetched as uint8 images on the device, (count, 3, side, side)."""
        return self.pixels[self.placement.tensor(fetched.numpy())]


class StreamedStore:
    """Images that stay where they are, in memory or on disk, and come to the device when needed.

    They are read by threads rather than processes: copying lets go of Python's lock, a thread
    copies more than a million images of 32 px a second, and nothing is copied twice.
    """

    def __init__(self, parts: Sequence[ImageRows], placement: Placement) -> None:
        self.placement = placement
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts])
        self.side = parts[0].shape[1]
        self.readers = ThreadPoolExecutor(READERS)
        for part in parts:
            mapping = getattr(getattr(part, "images", None), "_mmap", None)
            if mapping is not None and hasattr(mmap, "MADV_RANDOM"):
                mapping.madvise(mmap.MADV_RANDOM)  # read what is asked for, not what lies behind it

    def __len__(self) -> int:
        return int(self.ends[-1])

    def fetch(self, rows: Rows) -> Tensor:
        """Read images into memory from which a GPU can copy by itself."""
        shape = (len(rows), self.side, self.side, 3)
        on_gpu = self.placement.device.type == "cuda"
        images = torch.empty(shape, dtype=torch.uint8, pin_memory=on_gpu)
        into = images.numpy()
        pieces = max(1, min(READERS, len(rows) // _FEW))
        if pieces == 1:
            self._read(rows, into)
        else:
            split = np.array_split(rows, pieces), np.array_split(into, pieces)
            list(self.readers.map(self._read, *split))
        return images

    def deliver(self, fetched: Tensor) -> Tensor:
        """Copy the images to the device, without waiting for what is queued there."""
        return fetched.to(self.placement.device, non_blocking=True).permute(0, 3, 1, 2)

    def _read(self, rows: Rows, into: NDArray[np.uint8]) -> None:
        if len(self.parts) == 1:
            _take(self.parts[0], rows, into)
            return
        part_of = np.searchsorted(self.ends, rows, side="right")
        for number, part in enumerate(self.parts):
            places = np.flatnonzero(part_of == number)
            if len(places):
                first = self.ends[number] - len(part)
                into[places] = part[rows[places] - first]


ImageStore = ResidentStore | StreamedStore


def make_stores(
    groups: Sequence[Sequence[ImageRows]], placement: Placement, limit: int
) -> list[ImageStore]:
    """Return a store for each group of images; those that fit into the limit stay on the device."""
    stores: list[ImageStore] = []
    left = limit
    for parts in groups:
        size = sum(part.nbytes for part in parts)
        fits = size <= left
        left -= size if fits else 0
        stores.append((ResidentStore if fits else StreamedStore)(parts, placement))
    return stores


def resident_limit(asked: int | None, placement: Placement) -> int:
    """Return how many bytes of images may stay on the device: as asked, or what suits it."""
    if asked is not None:
        return asked
    if placement.device.type == "cuda":
        return torch.cuda.get_device_properties(placement.device).total_memory // GPU_SHARE
    return CPU_BYTES


def _take(part: ImageRows, rows: Rows, into: NDArray[np.uint8]) -> None:
    if isinstance(part, MappedRows):
        rows, part = part.rows[rows], part.images
    # With another mode than "clip" the result goes through a buffer; no number is out of range.
    np.take(part, rows, axis=0, out=into, mode="clip")
