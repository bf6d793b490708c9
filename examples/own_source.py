"""A source of your own: twelve classes of striped images, drawn on demand.

distillmatch run --source own_source:stripes --order parent --unlabeled positive --out result
"""

import numpy as np

from distillmatch.config import StreamConfig
from distillmatch.sources import ClassTree, Dataset, Part

DIRECTIONS = {"flat": 0.0, "upright": 90.0, "rising": 45.0, "falling": 135.0}
WIDTHS = {"fine": 3.0, "medium": 5.0, "broad": 8.0}
NAMES = tuple(f"{width} {direction}" for direction in DIRECTIONS for width in WIDTHS)
TREE = ClassTree(
    parent_of_class=tuple(c // len(WIDTHS) for c in range(len(NAMES))),
    super_class_of_parent=(0, 0, 1, 1),
    parent_names=tuple(DIRECTIONS),
    super_class_names=("straight", "slanted"),
)


def stripes(config: StreamConfig) -> Dataset:
    """Return 50 training and 10 test images of each class."""
    side = config.image_size or 16
    return Dataset(
        name="stripes",
        train=draw(50, side, np.random.default_rng(1)),
        test=draw(10, side, np.random.default_rng(2)),
        class_names=NAMES,
        tree=TREE,
    )


def draw(per_class: int, side: int, random: np.random.Generator) -> Part:
    """Draw images of all classes: waves at a random phase, in two random colors, with noise."""
    labels = np.repeat(np.arange(len(NAMES)), per_class)
    count = len(labels)
    angles = np.array([a for a in DIRECTIONS.values() for _ in WIDTHS])[labels]
    angles = np.radians(angles + random.normal(0, 5, count))[:, None, None]
    widths = np.array([w for _ in DIRECTIONS for w in WIDTHS.values()])[labels][:, None, None]
    rows, columns = np.mgrid[:side, :side]
    along = columns * np.sin(angles) + rows * np.cos(angles)
    phases = random.uniform(0, 2 * np.pi, (count, 1, 1))
    wave = 0.5 + 0.5 * np.sin(2 * np.pi * along / widths + phases)[..., None]
    colors = random.uniform(0, 255, (2, count, 1, 1, 3))
    pixels = wave * colors[0] + (1 - wave) * colors[1]
    pixels += random.normal(0, 10, pixels.shape)
    return Part(pixels.clip(0, 255).astype(np.uint8), labels.astype(np.int64))
