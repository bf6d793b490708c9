"""Which images the steps of a training take: passes over a set, cut into batches.

A pass takes every image of a set once, in an order of its own. Labeled images have one pass an
epoch. Unlabeled ones go round independently of the epochs: their steps are counted through the
whole training.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distillmatch.engine.stores import Rows

LastBatches = Literal["filled", "short"]
Sizes = tuple[int, ...]
"""How many images each step takes."""

Draw = Callable[[int], Rows]
"""Returns the order of a pass, by its number."""


@dataclass(frozen=True)
class BatchOrder:
    """How passes over so many images are cut into batches.

    `filled`, every step takes a whole batch: steps of equal shape are captured once, and
    normalization never meets a tiny batch. `short`, the last batch of a pass has what is left of
    it; where that is a single image, which has no statistics of its own, it joins the batch before.
    A set of one image fills its batches in any case.
    """

    count: int
    batch: int
    last_batches: LastBatches = "filled"

    @property
    def steps(self) -> int:
        """The steps of one pass."""
        return -(-(self.count - self._ends_short) // self.batch)

    def images(self, steps: range) -> int:
        """Return how many images some steps of a training take."""
        return sum(map(self._size, steps))

    def in_pass(self, number: int, steps: range, draw: Draw) -> tuple[Rows, Sizes]:
        """Return what some steps of a pass take; filled up with more of the same order."""
        if self._ends_short:
            before = number * self.steps
            return self._short(range(before + steps.start, before + steps.stop), draw)
        places = np.arange(steps.start * self.batch, steps.stop * self.batch) % self.count
        return draw(number)[places], (self.batch,) * len(steps)

    def going_round(self, steps: range, draw: Draw) -> tuple[Rows, Sizes]:
        """Return what some steps of a training take; filled up with images of the next pass."""
        if self._ends_short:
            return self._short(steps, draw)
        start, end = steps.start * self.batch, steps.stop * self.batch
        pieces = [
            draw(number)[max(0, start - number * self.count) : end - number * self.count]
            for number in range(start // self.count, -(-end // self.count))
        ]
        return np.concatenate(pieces), (self.batch,) * len(steps)

    @property
    def _ends_short(self) -> bool:
        return self.last_batches == "short" and self.count > 1

    def _short(self, steps: range, draw: Draw) -> tuple[Rows, Sizes]:
        pieces = []
        for step in steps:
            number, place = divmod(step, self.steps)
            first = place * self.batch
            pieces.append(draw(number)[first : first + self._size(step)])
        return np.concatenate(pieces), tuple(map(len, pieces))

    def _size(self, step: int) -> int:
        """Return how many images a step of a training takes."""
        if self._ends_short and step % self.steps == self.steps - 1:
            return self.count - (self.steps - 1) * self.batch
        return self.batch


def of_each_class(labels: NDArray[np.int64], per_class: int, draw: Draw, steps: range) -> Rows:
    """Return so many rows of every class in `labels`, for each step, sorted by class.

    A step takes the first ones of each class in an order of its own, again from the beginning where
    the class has fewer.
    """
    counts = np.bincount(labels)
    starts, counts = (np.cumsum(counts) - counts)[counts > 0, None], counts[counts > 0, None]
    places = (starts + np.arange(per_class) % counts).ravel()
    rows = []
    for step in steps:
        order = draw(step)
        rows.append(order[np.argsort(labels[order], kind="stable")][places])
    return np.concatenate(rows)


def batch_sizes(count: int, batch: int) -> list[int]:
    """Cut so many images into batches of about a size, none of them small."""
    batches = max(1, count // batch)
    each, more = divmod(count, batches)
    return [each + (number < more) for number in range(batches)]
