"""Folders of images in one color each, for the tests of the source `folder`."""

from pathlib import Path

import numpy as np
from PIL import Image

from distillmatch.config import StreamConfig
from distillmatch.sources import Dataset, folder


def save(path: Path, color: tuple[int, int, int], size: int = 32) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), color).save(path)
    return path


def load(data_dir: Path, **options: object) -> Dataset:
    return folder.load(StreamConfig(source="folder", data_dir=data_dir, **options))


def colors(dataset_part: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(map(int, image[0, 0])) for image in dataset_part]
