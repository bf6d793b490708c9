"""The splits of the paper's authors: which classes in which order, which images labeled.

Their seeds were 0, 1 and 2. The generators are those of their code, Python's and NumPy's legacy
one, so a seed gives what it gave them. They did not seed the generator of the `random` stream's
classes and of the `negative` groups; we draw those by our hash.
"""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Item = TypeVar("Item")


def class_order(classes: int, seed: int) -> list[int]:
    """Return the classes in learning order: by number with seed 0, else shuffled by Python."""
    order = list(range(classes))
    if seed:
        Random(seed).shuffle(order)
    return order


def parent_order(parents: Sequence[Item], seed: int) -> list[Item]:
    """Return the parents' tasks in learning order: shuffled by Python, with seed 0 too."""
    order = list(parents)
    Random(seed).shuffle(order)
    return order


def label_order(images: Indices, seed: int) -> Indices:
    """Return a class's images, given in file order, in the order in which they are labeled.

    Every class has a generator of its own, so all classes of one size are permuted alike.
    """
    return images[np.random.RandomState(seed).permutation(len(images))]


def unlabeled_orders(rest: dict[int, Indices], seed: int) -> dict[int, Indices]:
    """Return each class's unlabeled images in the order in which they are divided over tasks.

    One permutation is drawn over all of them, in the order of tasks and classes that `rest` has.
    """
    classes = np.concatenate([np.full(len(images), c) for c, images in rest.items()])
    images = np.concatenate(list(rest.values()))
    order = np.random.RandomState(seed).permutation(len(images))
    classes, images = classes[order], images[order]
    return {c: images[classes == c] for c in rest}
