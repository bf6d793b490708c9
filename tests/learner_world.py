"""Small tasks of embedded images for the learner's tests."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from distillmatch import ContinualLearner, Dataset, StreamConfig, load_source
from distillmatch.engine import NoProgress

SMALL: dict[str, Any] = {
    "network": "wrn-10-1",
    "image_size": 16,
    "epochs": 2,
    "batch": 8,
    "unlabeled_batch": 8,
}
GOLDFISH, CLOWNFISH, TROUT, ANGELFISH, SHARK, BOAT = range(6)


class CrashError(Exception):
    """A process that dies."""


class DiesIn(NoProgress):
    """Ends the task after so many epochs, without a word."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def advance(self, done: float, doing: str) -> None:
        self.epochs -= 1
        if self.epochs < 0:
            raise CrashError


@cache
def shapes() -> Dataset:
    return load_source(StreamConfig(source="shapes"))


def small_learner(method: str = "base", **others: Any) -> ContinualLearner:
    return ContinualLearner(method, **{**SMALL, **others})


def images_of(*classes: int, count: int, first: int = 0) -> NDArray[np.uint8]:
    part = shapes().train
    places = [np.flatnonzero(part.labels == one)[first : first + count] for one in classes]
    images: NDArray[np.uint8] = part.images[np.concatenate(places)]
    return images


def names_of(*classes: int, count: int = 1) -> list[str]:
    return [shapes().class_names[one] for one in classes for _ in range(count)]


def task(*classes: int, count: int, first: int = 0) -> tuple[NDArray[np.uint8], list[str]]:
    return images_of(*classes, count=count, first=first), names_of(*classes, count=count)


def write_classes(folder: Path, *classes: int, count: int, first: int = 0) -> Path:
    for one in classes:
        write_images(folder / names_of(one)[0], images_of(one, count=count, first=first))
    return folder


def write_images(folder: Path, images: NDArray[np.uint8]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number}.png")
    return folder
