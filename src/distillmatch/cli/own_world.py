"""A little world of folders, drawn from the embedded data: what a user's own images may look like.

Three months. Each brings a folder with a few labelled images of new classes, and a folder of what
a camera saw: the new things, those of the months before, and strangers. One test folder has all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from distillmatch.config import StreamConfig
from distillmatch.errors import explain_disk_errors
from distillmatch.randomness import permutation
from distillmatch.sources import Dataset, load_source

MONTHS = {
    "march": ("daisy", "goldfish"),
    "april": ("pizza", "shuttle"),
    "may": ("cottage", "football"),
}
STRANGERS = ("palm", "pirate ship", "tower block", "crescent moon", "tea cup", "dice block")
LABELS, SIGHTS, STRANGE_SIGHTS, TESTS = 20, 40, 20, 20
"""Of each class: images with a label, images the camera sees in a month (of strangers, fewer),
and images to test with."""


@dataclass(frozen=True)
class Month:
    """One month's folders."""

    name: str
    labeled: Path
    camera: Path


def build_world(folder: Path) -> tuple[list[Month], Path]:
    """Write the images; return the months in order, and the folder of test images."""
    dataset = load_source(StreamConfig(source="shapes"))
    pool = _Pool(dataset)
    months = []
    known: tuple[str, ...] = ()
    for name, classes in MONTHS.items():
        month = Month(name, folder / name / "labeled", folder / name / "camera")
        known += classes
        for label in classes:
            _write(pool.take(label, LABELS), month.labeled / label)
        sights = [pool.take(label, SIGHTS) for label in known]
        sights += [pool.take(label, STRANGE_SIGHTS) for label in STRANGERS]
        _write(_shuffled(sights, name), month.camera)
        months.append(month)
    for label in known:
        number = dataset.class_names.index(label)
        tests = dataset.test.images[dataset.test.labels == number]
        _write(tests[:TESTS], folder / "test" / label)
    return months, folder / "test"


class _Pool:
    """Gives every training image away once."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.taken: dict[str, int] = {}

    def take(self, label: str, count: int) -> NDArray[np.uint8]:
        number = self.dataset.class_names.index(label)
        places = np.flatnonzero(self.dataset.train.labels == number)
        start = self.taken.get(label, 0)
        self.taken[label] = start + count
        images: NDArray[np.uint8] = self.dataset.train.images[places[start : start + count]]
        return images


def _shuffled(parts: Sequence[NDArray[np.uint8]], month: str) -> NDArray[np.uint8]:
    images = np.concatenate(parts)
    return images[permutation(len(images), 1, "the camera of", month)]


def _write(images: NDArray[np.uint8], folder: Path) -> None:
    with explain_disk_errors("writing the images of the demo", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for number, pixels in enumerate(images, start=1):
            Image.fromarray(pixels).save(folder / f"{number:03}.png")
