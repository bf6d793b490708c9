"""Which images the steps of a training take: passes over a set, cut into batches.

A pass takes every image of a set once, in an order of its own. Labeled images have one pass an
epoch. Unlabeled ones go round independently of the epochs: their steps are counted through the
whole training.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distillmatch.config import RunConfig
from distillmatch.engine.stores import Rows
from distillmatch.methods import ImageSet, Training
from distillmatch.randomness import permutation

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


class TrainingOrder:
    """Which images each step of a training takes, of sets with so many images.

    All draws are functions of the seed, the task, the training and the epoch. `labeled_batch` is
    the size of a whole labeled batch.
    """

    def __init__(
        self,
        training: Training,
        task: int,
        counts: Mapping[ImageSet, int],
        labeled_batch: int,
        config: RunConfig,
        last_batches: LastBatches,
        permutation: Callable[..., Rows] = permutation,
    ) -> None:
        self.training = training
        self.counts = counts
        self.labeled_batch = labeled_batch
        self.stored = self._stored_in_batch(config)
        self.over: ImageSet = "new" if self.stored else training.labeled
        in_batch = labeled_batch - self.stored
        self.labeled = BatchOrder(counts[self.over], in_batch, last_batches)
        self.unlabeled = BatchOrder(counts["unlabeled"], config.unlabeled_batch, last_batches)
        self.has_unlabeled = training.unlabeled and counts["unlabeled"] > 0
        self.is_over_unlabeled = self.has_unlabeled and training.epoch_of == "unlabeled"
        self.steps = (self.unlabeled if self.is_over_unlabeled else self.labeled).steps
        self.task = task
        self.seed = config.seed
        self.permutation = permutation

    def labeled_rows(
        self, epoch: int, steps: range, slots: NDArray[np.int64]
    ) -> tuple[Rows, Sizes]:
        """Return the labeled images of some steps of an epoch; `slots` are those of all of them."""
        per_class = self.training.per_class
        if per_class is not None:
            draw, in_training = self._draw(self.training.labeled, "step"), self._in(epoch, steps)
            rows = of_each_class(slots, per_class, draw, in_training)
            return rows, (self.labeled_batch,) * len(steps)
        is_pass = not self.is_over_unlabeled
        rows, sizes = self._taken(self.labeled, self.over, epoch, steps, is_pass)
        if not self.stored:
            return rows, sizes
        stored = BatchOrder(self.counts["coreset"], self.stored)
        others, _ = self._taken(stored, "coreset", epoch, steps, is_pass=False)
        others = (others + self.counts["new"]).reshape(len(steps), self.stored)
        pieces = np.split(rows, np.cumsum(sizes)[:-1])
        both = [np.concatenate(pair) for pair in zip(pieces, others, strict=True)]
        return np.concatenate(both), tuple(map(len, both))

    def unlabeled_rows(self, epoch: int, steps: range) -> tuple[Rows, Sizes]:
        """Return the unlabeled images of some steps of an epoch."""
        return self._taken(self.unlabeled, "unlabeled", epoch, steps, self.is_over_unlabeled)

    def unlabeled_before(self, epoch: int, step: int) -> int:
        """Return how many unlabeled images the steps of an epoch take before one of them."""
        return self.unlabeled.images(self._in(epoch, range(step)))

    def _stored_in_batch(self, config: RunConfig) -> int:
        """Return the stored images in each batch where their share is chosen: some, but not all."""
        training, share = self.training, config.stored_share or self.training.stored_share
        is_mixed = training.labeled == "labeled" and training.per_class is None
        if share is None or not (is_mixed and self.counts["new"] and self.counts["coreset"]):
            return 0
        return min(max(round(share * self.labeled_batch), 1), self.labeled_batch - 1)

    def _taken(
        self, order: BatchOrder, over: ImageSet, epoch: int, steps: range, is_pass: bool
    ) -> tuple[Rows, Sizes]:
        """Return what some steps of an epoch take of a set, in a pass of it or going round."""
        if is_pass:
            return order.in_pass(epoch, steps, self._draw(over, "epoch"))
        return order.going_round(self._in(epoch, steps), self._draw(over, "round"))

    def _in(self, epoch: int, steps: range) -> range:
        """Return the numbers that steps of an epoch have in the whole training."""
        return range(epoch * self.steps + steps.start, epoch * self.steps + steps.stop)

    def _draw(self, over: ImageSet, purpose: str) -> Draw:
        key = self.counts[over], self.seed, purpose, self.task, self.training.name
        return lambda number: self.permutation(*key, number)


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
