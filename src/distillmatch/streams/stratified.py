"""Labels by scikit-learn's stratified split, which later papers fix for all of their runs.

It is the rule of `train_test_split(range(n), train_size=share, stratify=labels, random_state=0)`,
written out with NumPy's legacy generator, whose numbers never change.
"""

from collections.abc import Sequence
from math import floor

import numpy as np
from numpy.typing import NDArray

from distillmatch.errors import StreamError

Indices = NDArray[np.int64]


def label_orders(by_class: Sequence[Indices], share: float) -> tuple[list[Indices], list[int]]:
    """Return each class's images in the order in which they are labeled, and how many are.

    They are given in file order; the share is of all images together.
    """
    random = np.random.RandomState(0)
    sizes = np.array([len(images) for images in by_class])
    total = floor(share * sizes.sum())
    left = sizes.sum() - total
    if min(total, left) < len(sizes):
        raise StreamError(
            f"label_fraction {share} leaves {total:,} labeled and {left:,} unlabeled images, and "
            f"splits 'stratified' needs one of each for the {len(sizes)} classes"
        )
    counts = _dealt(sizes, total, random)
    _dealt(sizes - counts, left, random)  # moves the generator where the other part has ties
    if not counts.all():
        raise StreamError(
            f"label_fraction {share} leaves the smallest class of {sizes.min()} images without a "
            "label with splits 'stratified'; give a larger one"
        )
    return [images[random.permutation(len(images))] for images in by_class], counts.tolist()


def _dealt(sizes: Indices, total: int, random: np.random.RandomState) -> Indices:
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
