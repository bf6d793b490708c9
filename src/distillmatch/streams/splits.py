"""Splits: the order in which classes are learned, and which images of a class are labeled.

`hashed` draws by our hash. `authors` draws as the code of the paper's authors, whose seeds were 0,
1 and 2, by Python's generator and NumPy's legacy one, whose numbers never change. `stratified` is
scikit-learn's `train_test_split(range(n), train_size=share, stratify=labels, random_state=0)`,
which later papers fix for all of their runs. What the authors drew without a seed, and everything
else that is random in a stream, is drawn by our hash.
"""

from collections.abc import Sequence
from math import floor
from random import Random
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distillmatch.config import StreamConfig
from distillmatch.errors import StreamError
from distillmatch.randomness import permutation, shuffled
from distillmatch.sources.dataset import Dataset

Indices = NDArray[np.int64]


def learning_order(what: Literal["class", "parent"], count: int, config: StreamConfig) -> list[int]:
    """Return the numbers of classes or of parents in the order in which they are learned."""
    order = list(range(count))
    if config.splits == "hashed":
        return shuffled(order, config.seed, f"{what} order")
    # The authors leave classes in order with seed 0, and shuffle parents with every seed.
    if config.splits == "authors" and (config.seed or what == "parent"):
        Random(config.seed).shuffle(order)
    return order


def label_orders(
    dataset: Dataset, by_class: Sequence[Indices], config: StreamConfig
) -> tuple[list[Indices], list[int]]:
    """Return each class's images in the order in which they are labeled, and how many are.

    Images are given in file order. The authors' generator is seeded anew for every class, so all
    classes of one size are permuted alike.
    """
    seed, named = config.seed, list(zip(dataset.class_names, by_class, strict=True))
    counts = [_labels_of_class(dataset, config, name, len(images)) for name, images in named]
    if config.splits == "stratified":
        return stratified_labels(by_class, config.label_fraction or dataset.label_fraction)
    if config.splits == "authors":
        orders = [np.random.RandomState(seed).permutation(len(images)) for images in by_class]
    else:
        orders = [permutation(len(images), seed, "labels", name) for name, images in named]
    return [images[order] for images, order in zip(by_class, orders, strict=True)], counts


def unlabeled_orders(
    rest: Sequence[Indices], class_order: Sequence[int], config: StreamConfig
) -> list[Indices]:
    """Return each class's unlabeled images in the order in which they are divided over tasks.

    The authors draw one permutation over all of them, in the order in which classes are learned.
    """
    if config.splits != "authors":
        return list(rest)
    images = np.concatenate([rest[c] for c in class_order])
    classes = np.repeat(class_order, [len(rest[c]) for c in class_order])
    order = np.random.RandomState(config.seed).permutation(len(images))
    images, classes = images[order], classes[order]
    return [images[classes == c] for c in range(len(rest))]


def _labels_of_class(dataset: Dataset, config: StreamConfig, name: str, images: int) -> int:
    """Return how many of a class's images are labeled, or say that there are too few."""
    if images == 0:
        raise StreamError(f"class '{name}' of source '{dataset.name}' has no training image")
    if config.labels_per_class is None:
        return max(1, round(images * (config.label_fraction or dataset.label_fraction)))
    if config.labels_per_class > images:
        raise StreamError(
            f"labels_per_class is {config.labels_per_class}, but class '{name}' of source "
            f"'{dataset.name}' has only {images} training images"
        )
    return config.labels_per_class


def stratified_labels(by_class: Sequence[Indices], share: float) -> tuple[list[Indices], list[int]]:
    """Return orders and counts of labels; the share is of all images together."""
    random = np.random.RandomState(0)
    sizes = np.array([len(images) for images in by_class])
    total = floor(share * sizes.sum())
    left = sizes.sum() - total
    if min(total, left) < len(sizes):
        raise StreamError(
            f"label_fraction {share} leaves {total:,} labeled and {left:,} unlabeled images, and "
            f"splits 'stratified' needs one of each for the {len(sizes)} classes"
        )
    counts = _in_proportion(sizes, total, random)
    _in_proportion(sizes - counts, left, random)  # moves the generator where the rest has ties
    if not counts.all():
        raise StreamError(
            f"label_fraction {share} leaves the smallest class of {sizes.min()} images without a "
            "label with splits 'stratified'; give a larger one"
        )
    return [images[random.permutation(len(images))] for images in by_class], counts.tolist()


def _in_proportion(sizes: Indices, total: int, random: np.random.RandomState) -> Indices:
    """Divide a total in proportion to sizes: by the largest remainders, and by lot among equals."""
    shares = sizes / sizes.sum() * total
    counts: Indices = np.floor(shares).astype(np.int64)
    missing = int(total - counts.sum())
    remainders = shares - counts
    for remainder in np.unique(remainders)[::-1]:
        if missing > 0:
            equal = np.flatnonzero(remainders == remainder)
            counts[random.choice(equal, min(len(equal), missing), replace=False)] += 1
            missing -= min(len(equal), missing)
    return counts
