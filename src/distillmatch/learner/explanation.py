"""What a learner accepted from its environment in a task."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Label = str | int


@dataclass(frozen=True, eq=False)
class Example:
    """An unlabeled image that was accepted, what it was taken for, and how familiar it looked.

    `image` is uint8, (side, side, 3). `score` is the gate's, where it is one that scores.
    """

    image: NDArray[np.uint8]
    label: Label
    score: float | None


@dataclass(frozen=True, eq=False)
class Explanation:
    """What the environment contributed to one task.

    `seen` unlabeled images were met, `accepted` of them were taken for classes that are known,
    `by_class` says for which. `accepted` is None where none was judged: by methods that do not
    judge, and by those that train in a first task, when there is no class to recognize yet. With
    method "features", `examples` are of files and arrays, not of videos and streams.
    """

    name: str
    seen: int
    accepted: int | None
    by_class: dict[Label, int]
    examples: list[Example]
