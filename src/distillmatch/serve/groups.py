"""Groups of camera images that one look can label, those that teach most first.

A learner is *sure* of a familiar image if its two most probable classes are at least `SURE` apart,
else the image is *doubtful*. These of each class, and the *unfamiliar* images, are grouped by how
they look. The uncertainty of an image is 1 minus that distance, and 1 if it is unfamiliar. A
group's gain is the sum of the uncertainties of its images without a label: about as many answers
the learner does not know.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Kind = Literal["unfamiliar", "doubtful", "sure"]
SURE = 0.5
"""Least distance between the probabilities of the two most probable classes."""
CLUSTER_IMAGES, MOST_IMAGES, AT_ONCE = 16, 48, 40
"""Mean and most images of a cluster, for one look; and into how many clusters images are divided
at once, which bounds the time.
"""
_STEPS = 50


@dataclass(frozen=True)
class Group:
    """Images that probably get the same label, by number, those that teach most first."""

    kind: Kind
    images: list[int]
    label: str | None = None


class Grouping(NamedTuple):
    """All groups, and the uncertainty of each image."""

    groups: list[Group]
    uncertainty: NDArray[np.float32]

    def gain(self, group: Group, open_images: NDArray[np.bool_]) -> float:
        """Return what a group teaches, of which the `open_images` have no label yet."""
        numbers = np.array(group.images)
        return float(self.uncertainty[numbers[open_images[numbers]]].sum())


def group_images(
    probabilities: NDArray[np.float32],
    familiar: NDArray[np.bool_],
    descriptors: NDArray[np.float32],
    classes: list[str],
) -> Grouping:
    """Group images by what the learner thinks of them and by how they look."""
    best = probabilities.argmax(axis=1)
    uncertainty = np.where(familiar, 1 - margins(probabilities), 1).astype(np.float32)
    sure = uncertainty <= 1 - SURE
    chosen: list[tuple[Kind, str | None, NDArray[np.bool_]]] = [("unfamiliar", None, ~familiar)]
    for number, label in enumerate(classes):
        here = familiar & (best == number)
        chosen += [("doubtful", label, here & ~sure), ("sure", label, here & sure)]
    groups = []
    for kind, guess, mask in chosen:
        numbers = np.flatnonzero(mask)
        for members in clusters(descriptors[numbers]):
            images = numbers[members]
            order = np.argsort(-uncertainty[images], kind="stable")
            groups.append(Group(kind, images[order].tolist(), guess))
    return Grouping(groups, uncertainty)


def margins(probabilities: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return how far apart the two most probable classes are; one class alone is certain."""
    if probabilities.shape[1] == 1:
        return np.ones(len(probabilities), np.float32)
    second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
    return np.asarray(first - second)


def clusters(rows: NDArray[np.float32]) -> list[NDArray[np.int64]]:
    """Group rows that are near each other, at most `MOST_IMAGES` together unless they are equal."""
    parts = _means(rows)
    if len(parts) == 1:
        return parts
    return [
        part[inner]
        for part in parts
        for inner in (clusters(rows[part]) if len(part) > MOST_IMAGES else [np.arange(len(part))])
    ]


def _means(rows: NDArray[np.float32]) -> list[NDArray[np.int64]]:
    """Group rows by k-means."""
    count = min(AT_ONCE, -(-len(rows) // CLUSTER_IMAGES))
    if not count:
        return []
    centers = _first_centers(rows, count)
    nearest = np.full(len(rows), -1)
    for _ in range(_STEPS):
        before, nearest = nearest, _distances(rows, centers).argmin(axis=1)
        if (before == nearest).all():
            break
        for number in np.unique(nearest):
            centers[number] = rows[nearest == number].mean(axis=0)
    return [np.flatnonzero(nearest == number) for number in np.unique(nearest)]


def _first_centers(rows: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Choose the row nearest to the mean, then in turn the one farthest from those chosen."""
    chosen = [int(_distances(rows, rows.mean(axis=0, keepdims=True)).argmin())]
    gaps = _distances(rows, rows[chosen])[:, 0]
    while len(chosen) < count:
        chosen.append(int(gaps.argmax()))
        gaps = np.minimum(gaps, _distances(rows, rows[chosen[-1:]])[:, 0])
    return rows[chosen].astype(np.float32)


def _distances(rows: NDArray[np.float32], centers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the squared distance of each row from each center."""
    squares = (rows**2).sum(axis=1)[:, None] + (centers**2).sum(axis=1)
    return np.asarray(squares - 2 * rows @ centers.T)
