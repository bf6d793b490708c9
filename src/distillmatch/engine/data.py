"""A task's data: image sets, the order of an epoch, and its views, made in parts that fit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import lcm
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.engine.batch_order import Sizes, TrainingOrder, batch_sizes
from distillmatch.engine.device import Placement
from distillmatch.engine.outputs import (
    frozen_outputs,
    joined,
    piece_size,
    pieces_of,
    steps_in_piece,
)
from distillmatch.engine.stores import ImageStore, Rows, make_stores, resident_limit
from distillmatch.methods import (
    Batch,
    Frozen,
    ImageSet,
    TaskInfo,
    Training,
    count_labels,
    find_method,
)
from distillmatch.randomness import permutation
from distillmatch.sources.dataset import ImageRows
from distillmatch.views import Normalization, strong_views, view_key, weak_views

Labeled = tuple[ImageRows | list[ImageRows], NDArray[np.int64]]
"""Images, in one or several arrays that follow each other, and their labels."""

Views = Callable[..., Tensor]
"""`weak_views` or `strong_views`."""

VIEWS_SHARE = 8
"""The views of one part of an epoch may take one part in so many of what images may."""


@dataclass(frozen=True)
class Images:
    """Some images of a store, with their labels on the device; unlabeled ones have none."""

    store: ImageStore
    rows: Rows
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, chosen: Rows) -> Tensor:
        """Do the host's part of loading some of the images."""
        return self.store.fetch(self.rows[chosen])

    def load(self, chosen: Rows) -> Tensor:
        """Return some of the images, on the device."""
        return self.store.deliver(self.fetch(chosen))

    @property
    def pixels(self) -> Tensor:
        """All images, on the device."""
        return self.load(np.arange(len(self)))


@dataclass(frozen=True)
class Draft:
    """A part of an epoch before its views are made: which images its steps take."""

    number: int
    steps: range
    sizes: Sizes
    labeled: Rows
    images: Tensor
    unlabeled_sizes: Sizes
    unlabeled: Rows | None = None
    unlabeled_images: Tensor | None = None


@dataclass(frozen=True)
class Epoch(Batch):
    """The views of an epoch, or of a part of one, in the order the steps take them."""

    sizes: Sizes = ()
    unlabeled_sizes: Sizes = ()

    @property
    def steps(self) -> int:
        """How many steps these views are for."""
        return len(self.sizes)


class TaskData:
    """One task's labeled, stored and unlabeled images, and everything drawn from them.

    All draws are functions of the seed, the task, the training and the epoch: there is no state
    that an interruption could lose. How an epoch is cut into parts changes nothing about its views.
    `truth` is about the unlabeled images, where a method needs it. `networks`, which are set later,
    are the method's, of which frozen ones may normalize by batches.
    """

    def __init__(
        self,
        info: TaskInfo,
        labeled: Labeled,
        stored: Labeled,
        unlabeled: ImageRows | list[ImageRows],
        config: RunConfig,
        *,
        normalization: Normalization,
        placement: Placement,
        truth: NDArray[np.int64] | None = None,
    ) -> None:
        self.info = info
        self.normalization = normalization
        self.placement = placement
        self.config = config
        self.last_batches = find_method(config.method).recipe_of(config).last_batches
        self.networks: Mapping[str, nn.Module] = {}
        self.limit = resident_limit(config.resident_bytes, placement)
        groups = [*_listed(labeled[0]), *_listed(stored[0])], _listed(unlabeled)
        of_labels, of_unlabeled = make_stores(groups, placement, self.limit)
        labels = np.concatenate([labeled[1], stored[1]])
        everything, first = np.arange(len(labels)), _first_halves(labels)

        def labeled_set(rows: Rows) -> Images:
            return Images(of_labels, rows, placement.tensor(labels[rows]))

        self.sets: dict[ImageSet, Images] = {
            "labeled": labeled_set(everything),
            "new": labeled_set(everything[: len(labeled[1])]),
            "coreset": labeled_set(everything[len(labeled[1]) :]),
            "first-half": labeled_set(everything[first]),
            "second-half": labeled_set(everything[~first]),
            "unlabeled": Images(of_unlabeled, np.arange(len(of_unlabeled))),
        }
        self.slots = labels
        self.truth = None if truth is None else placement.tensor(truth)
        # An epoch in parts asks for its order and its round again and again.
        self._permutation = lru_cache(maxsize=3)(permutation)

    def steps(self, training: Training) -> int:
        """Return the steps of an epoch: a pass over the labeled or over the unlabeled images."""
        return self.order(training).steps

    def parts(self, training: Training) -> list[range]:
        """Cut the steps of an epoch so that the views of each part fit in memory.

        Parts end where pieces that are scored together end, so that scores are the same to the last
        bit however an epoch is cut.
        """
        order, unlabeled_batch = self.order(training), self.config.unlabeled_batch
        per_step = training.views_in_step(self.config.batch, unlabeled_batch, self.info)
        view_bytes = 3 * self.side * self.side * self.placement.dtype.itemsize
        fitting = self.limit // VIEWS_SHARE // (per_step * view_bytes)
        batches = order.labeled_batch, unlabeled_batch
        whole = lcm(*(steps_in_piece(one, self._piece_size()) for one in batches))
        count = max(1, fitting // whole) * whole
        return [range(order.steps)[start : start + count] for start in range(0, order.steps, count)]

    def draft(self, training: Training, number: int, steps: range) -> Draft:
        """Draw which images some steps of an epoch take, and fetch them as far as the host can."""
        chosen, others = self.sets[training.labeled], self.sets["unlabeled"]
        order = self.order(training)
        rows, sizes = order.labeled_rows(number, steps, self.slots[chosen.rows])
        images = chosen.fetch(rows)
        if not order.has_unlabeled:
            return Draft(number, steps, sizes, rows, images, (0,) * len(steps))
        rows_u, sizes_u = order.unlabeled_rows(number, steps)
        return Draft(number, steps, sizes, rows, images, sizes_u, rows_u, others.fetch(rows_u))

    def views(
        self,
        training: Training,
        draft: Draft,
        of_labeled: Callable[[Tensor, Sizes], Any] | None = None,
        of_unlabeled: Callable[[Tensor, Sizes], Any] | None = None,
    ) -> Epoch:
        """Make the views of a part of an epoch, and the outputs of frozen networks for them."""
        chosen, number, steps = self.sets[training.labeled], draft.number, draft.steps
        assert chosen.labels is not None
        pixels = chosen.store.deliver(draft.images)
        order = self.order(training)
        first = steps.start * order.labeled_batch
        key = training.name, number
        # These words key random numbers: spelled as in earlier versions, runs stay the same.
        images = self._views(weak_views, pixels, ("weak", "labelled"), key, first)
        strong_images = None
        if training.strong_labeled:
            strong_images = self._views(strong_views, pixels, ("strong", "labelled"), key, first)
        unlabeled = self.nothing()
        strong = self.nothing() if training.strong else None
        if draft.unlabeled_images is not None:
            pixels = self.sets["unlabeled"].store.deliver(draft.unlabeled_images)
            first = order.unlabeled_before(number, steps.start)
            unlabeled = self._views(weak_views, pixels, ("weak", "unlabelled"), key, first)
            if training.strong:
                strong = self._views(strong_views, pixels, ("strong",), key, first)
        truth = None
        if draft.unlabeled is not None and self.truth is not None:
            truth = self.truth[self.placement.tensor(draft.unlabeled)]
        return Epoch(
            sizes=draft.sizes,
            unlabeled_sizes=draft.unlabeled_sizes,
            images=images,
            labels=chosen.labels[self.placement.tensor(draft.labeled)],
            unlabeled=unlabeled,
            strong=strong,
            strong_images=strong_images,
            labeled_outputs=of_labeled and of_labeled(images, draft.sizes),
            unlabeled_outputs=of_unlabeled and of_unlabeled(unlabeled, draft.unlabeled_sizes),
            truth=truth,
        )

    def run(
        self, frozen: Frozen, over: ImageSet, views: int = 1, by_batch: tuple[str, ...] = ()
    ) -> Any:
        """Return outputs of frozen networks for weak views of every image of a set."""
        chosen, networks = self.sets[over], self.frozen(by_batch)
        batches = batch_sizes(len(chosen), self.config.unlabeled_batch) if by_batch else []
        outputs = []
        for view in range(views):
            start = 0
            for sizes in pieces_of(len(chosen), batches, self._piece_size()):
                rows = np.arange(start, start + sum(sizes))
                pixels = chosen.load(rows)
                key = f"pass over {over}", view
                weak = self._views(weak_views, pixels, ("weak", "pass"), key, start)
                where = self.info, self.placement, sizes if by_batch else (), networks
                outputs.append(frozen_outputs(frozen, weak, *where))
                start += len(rows)
        return joined(outputs)

    def frozen(self, names: tuple[str, ...]) -> list[nn.Module]:
        """Return the frozen networks of these names, of which some may not be there yet."""
        return [self.networks[name] for name in names if name in self.networks]

    def count(self, over: ImageSet) -> int:
        """Return how many images a set holds."""
        return len(self.sets[over])

    def labels(self, over: ImageSet) -> Tensor:
        """Return the classes of a labeled set's images, in the order of their outputs."""
        labels = self.sets[over].labels
        assert labels is not None, "the unlabeled set has no labels"
        return labels

    def label_counts(self, over: ImageSet) -> Tensor:
        """Return how many images of each seen class a labeled set holds."""
        return count_labels(self.labels(over), self.info.seen)

    @property
    def side(self) -> int:
        """The side of the images in pixels."""
        return self.sets["unlabeled"].store.side

    def _piece_size(self) -> int:
        return piece_size(self.placement.scoring_batch, self.side)

    def order(self, training: Training) -> TrainingOrder:
        """Return which images the steps of a training take."""
        counts = {name: len(images) for name, images in self.sets.items()}
        size = self.config.batch
        if training.per_class is not None:
            slots = self.slots[self.sets[training.labeled].rows]
            size = training.per_class * len(np.unique(slots))
        how = self.config, self.last_batches, self._permutation
        return TrainingOrder(training, self.info.number, counts, size, *how)

    def _views(
        self, make: Views, pixels: Tensor, words: tuple[str, ...], key: tuple[str, int], first: int
    ) -> Tensor:
        """Return random views of images, of which the first has that number in the epoch."""
        return make(
            pixels,
            view_key(self.config.seed, *words, self.info.number, *key),
            self.normalization,
            dtype=self.placement.dtype,
            first=first,
        )

    def nothing(self) -> Tensor:
        """Return views of no images."""
        shape = (0, 3, self.side, self.side)
        return torch.zeros(shape, dtype=self.placement.dtype, device=self.placement.device)


def _listed(images: ImageRows | list[ImageRows]) -> list[ImageRows]:
    return images if isinstance(images, list) else [images]


def _first_halves(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the first half of each class's images, rounded down; of a single image, that one."""
    first = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        first[places[: max(1, len(places) // 2)]] = True
    return first
