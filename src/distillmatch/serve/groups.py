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
MOST_IMAGES = 24
"""Most images of a group, for one look."""
_STEPS = 8


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
    """Divide rows in two by k-means, again and again, until at most `MOST_IMAGES` are together."""
    waiting = [np.arange(len(rows))] if len(rows) else []
    found = []
    while waiting:
        part = waiting.pop()
        if len(part) <= MOST_IMAGES:
            found.append(part)
            continue
        here = rows[part]
        first = here[_distances(here, here.mean(axis=0)).argmax()]
        second = here[_distances(here, first).argmax()]
        for _ in range(_STEPS):
            side = _distances(here, first) > _distances(here, second)
            if not side.any():  # all are equal
                side[::2] = True
            first, second = here[~side].mean(axis=0), here[side].mean(axis=0)
        waiting += [part[side], part[~side]]
    return found


def _distances(rows: NDArray[np.float32], center: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the distance of each row from the center."""
    return np.asarray(np.linalg.norm(rows - center, axis=1))
