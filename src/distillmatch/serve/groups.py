"""Groups of camera images to label together, the most informative images first.

A learner is *sure* of a familiar image if its two most probable classes are at least `SURE` apart,
else the image is *doubtful*. These of each class, and the *unfamiliar* images, are grouped by how
they look. The uncertainty of an image is 1 minus that distance, and 1 if it is unfamiliar. A
group's gain is the sum of the uncertainties of its images without a label: about as many answers
the learner does not know.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distillmatch.serve.camera import Judged

Kind = Literal["unfamiliar", "doubtful", "sure"]
SURE = 0.5
"""Least distance between the probabilities of the two most probable classes."""
MOST_IMAGES = 24
"""Most images of a group."""
_STEPS = 8


@dataclass(frozen=True)
class Group:
    """Images, by number, that probably get the same label; the most informative first."""

    kind: Kind
    images: list[int]
    label: str | None = None


def group_images(
    judged: Judged, uncertainty: NDArray[np.float32], classes: list[str]
) -> list[Group]:
    """Group images by what the learner thinks of them and by how they look."""
    best, sure = judged.probabilities.argmax(axis=1), uncertainty <= 1 - SURE
    chosen: list[tuple[Kind, str | None, NDArray[np.bool_]]]
    chosen = [("unfamiliar", None, ~judged.familiar)]
    for number, label in enumerate(classes):
        here = judged.familiar & (best == number)
        chosen += [("doubtful", label, here & ~sure), ("sure", label, here & sure)]
    groups = []
    for kind, guess, mask in chosen:
        numbers = np.flatnonzero(mask)
        for members in clusters(judged.descriptors[numbers]):
            images = numbers[members]
            order = np.argsort(-uncertainty[images], kind="stable")
            groups.append(Group(kind, images[order].tolist(), guess))
    return groups


def uncertainties(judged: Judged) -> NDArray[np.float32]:
    """Return the uncertainty of each image; a learner of one class is certain of that."""
    if judged.probabilities.shape[1] == 1:
        margins = np.ones(len(judged.probabilities), np.float32)
    else:
        second, first = np.partition(judged.probabilities, -2, axis=1)[:, -2:].T
        margins = first - second
    return np.where(judged.familiar, 1 - margins, 1).astype(np.float32)


def clusters(rows: NDArray[np.float32]) -> list[NDArray[np.int64]]:
    """Divide rows in two by k-means until no cluster has more than `MOST_IMAGES`."""
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
