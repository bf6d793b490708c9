"""Images made on the spot: drawn by a seed, in folders, or shaped as CIFAR-100."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from distillmatch.config import StreamConfig
from distillmatch.networks import separate_statistics
from distillmatch.sources import ClassTree, Dataset, Part, folder

CLASSES, PER_CLASS = 100, 500
SUPER_CLASSES = (
    (0, 1),
    (2, 4, 17),
    (3, 5, 6),
    (7, 13),
    (8, 11, 12, 15, 16),
    (9, 10),
    (14,),
    (18, 19),
)
"""The protocol's table: the coarse labels of each super-class."""


@cache
def cifar_shaped() -> Dataset:
    """Labels in a random order, as files have them; a class's parent is drawn too."""
    generator = np.random.default_rng(1)
    labels = generator.permutation(np.repeat(np.arange(CLASSES), PER_CLASS))
    parents = generator.permutation(np.repeat(np.arange(20), 5))
    empty = np.zeros((1, 8, 8, 3), np.uint8)
    return Dataset(
        "cifar-shaped",
        Part(np.broadcast_to(empty, (len(labels), 8, 8, 3)), labels),
        Part(np.broadcast_to(empty, (CLASSES, 8, 8, 3)), np.arange(CLASSES)),
        tuple(f"class {c}" for c in range(CLASSES)),
        ClassTree(
            tuple(parents.tolist()),
            tuple(s for p in range(20) for s, group in enumerate(SUPER_CLASSES) if p in group),
            tuple(f"parent {p}" for p in range(20)),
            tuple(f"super {s}" for s in range(8)),
        ),
    )


def save(path: Path, color: tuple[int, int, int], size: int = 32) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), color).save(path)
    return path


def load(data_dir: Path, **options: object) -> Dataset:
    return folder.load(StreamConfig(source="folder", data_dir=data_dir, **options))


def colors(dataset_part: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(map(int, image[0, 0])) for image in dataset_part]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, size: int = 8, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, size, size, generator=seeded(seed))


def together_and_apart(one: nn.Module, two: nn.Module) -> tuple[Tensor, Tensor]:
    """Show equal networks two batches, in one forward and in two: they must end alike."""
    first, second = images(4), 3 * images(5, seed=1) + 1
    with separate_statistics(one, [4, 5]):
        together = one(torch.cat([first, second]))
    apart = [two(first)]
    with separate_statistics(two, [5], 0):
        apart.append(two(second))
    torch.testing.assert_close(together, torch.cat(apart))
    for name, value in one.named_buffers():
        torch.testing.assert_close(value, dict(two.named_buffers())[name])
    return together, torch.cat(apart)
