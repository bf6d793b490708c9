"""Labels and a class tree shaped as those of CIFAR-100, with empty images."""

from functools import cache

import numpy as np

from distillmatch.sources import ClassTree, Dataset, Part

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
