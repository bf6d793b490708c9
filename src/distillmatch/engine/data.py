"""A task's data: image sets, the order of an epoch, and its views, made in parts that fit."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, lcm

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distillmatch.config.run import LastBatches
from distillmatch.engine.batch_order import BatchOrder, Draw, Sizes
from distillmatch.engine.device import Placement
from distillmatch.engine.scoring import piece_size, score_in_pieces
from distillmatch.engine.stores import ImageStore, Rows, make_stores, resident_limit
from distillmatch.methods import ImageSet, Scores, Training
from distillmatch.methods.method import ScoreFunction, count_labels
from distillmatch.randomness import permutation
from distillmatch.sources.rows import ImageRows
from distillmatch.views import Normalization, strong_views, view_key, weak_views

Labeled = tuple[ImageRows | list[ImageRows], NDArray[np.int64]]
"""Images, in one or several arrays that follow each other, and their labels."""

VIEWS_SHARE = 8
"""The views of one part of an epoch may take one part in so many of what images may."""


@dataclass(frozen=True)
class Images:
    """Some images of a store, with their labels on the device; unlabelled ones have no labels."""

    store: ImageStore
    rows: Rows
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, chosen: Rows) -> Tensor:
        """Do what the host can do beforehand to have some of the images."""
        return self.store.fetch(self.rows[chosen])

    @property
    def pixels(self) -> Tensor:
        """All images, on the device."""
        return self.store.deliver(self.store.fetch(self.rows))


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
class Epoch:
    """The views of an epoch, or of a part of one, in the order the steps take them."""

    sizes: Sizes
    unlabeled_sizes: Sizes
    images: Tensor
    labels: Tensor
    unlabeled: Tensor
    strong: Tensor | None
    strong_images: Tensor | None
    of_images: Scores
    of_unlabeled: Scores

    @property
    def steps(self) -> int:
        """How many steps these views are for."""
        return len(self.sizes)

    @property
    def tensors(self) -> list[Tensor]:
        """All that the steps read."""
        views = [self.images, self.labels, self.unlabeled]
        views += [one for one in (self.strong, self.strong_images) if one is not None]
        return [*views, *self.of_images.values(), *self.of_unlabeled.values()]


class TaskData:
    """One task's labelled, stored and unlabelled images, and everything drawn from them.

    All draws are functions of the seed, the task, the training and the epoch: there is no state
    that an interruption could lose. `notes` are what is known of each unlabelled image, the truth
    among them only where a method needs it. Images stay on the device if they take at most
    `resident_bytes`; how an epoch is cut into parts changes nothing about its views.
    """

    def __init__(
        self,
        task: int,
        classes: int,
        labeled: Labeled,
        stored: Labeled,
        unlabeled: ImageRows | list[ImageRows],
        *,
        normalization: Normalization,
        placement: Placement,
        seed: int,
        batch: int,
        unlabeled_batch: int,
        last_batches: LastBatches = "filled",
        truth: NDArray[np.int64] | None = None,
        resident_bytes: int | None = None,
    ) -> None:
        self.task = task
        self.classes = classes
        self.normalization = normalization
        self.placement = placement
        self.seed = seed
        self.batch = batch
        self.unlabeled_batch = unlabeled_batch
        self.last_batches = last_batches
        self.limit = resident_limit(resident_bytes, placement)
        of_labels, of_unlabeled = make_stores(
            [[*_listed(labeled[0]), *_listed(stored[0])], _listed(unlabeled)],
            placement,
            self.limit,
        )
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
        self.notes: Scores = {} if truth is None else {"truth": placement.tensor(truth)}
        self._said: dict[tuple[ScoreFunction, ImageSet, int], Scores] | None = None
        # An epoch in parts asks for its order and its round again and again.
        self._permutation = lru_cache(maxsize=3)(permutation)

    def steps(self, training: Training) -> int:
        """Return the steps of an epoch: one pass over the labelled images."""
        return self._order(training).steps

    def parts(self, training: Training) -> list[range]:
        """Cut the steps of an epoch so that the views of each part fit in memory.

        Parts end where pieces that are scored together end, so that scores are the same to the last
        bit however an epoch is cut.
        """
        steps = self.steps(training)
        per_step = training.views_in_step(self.batch, self.unlabeled_batch)
        fitting = self.limit // VIEWS_SHARE // (per_step * self._view_bytes())
        size = self._piece_size()
        whole = lcm(*(size // gcd(size, batch) for batch in (self.batch, self.unlabeled_batch)))
        count = max(1, fitting // whole) * whole
        return [range(start, min(start + count, steps)) for start in range(0, steps, count)]

    def draft(self, training: Training, number: int, steps: range) -> Draft:
        """Draw which images some steps of an epoch take, and fetch them as far as the host can."""
        chosen, others = self.sets[training.labeled], self.sets["unlabeled"]
        rows, sizes = self._order(training).in_pass(number, steps, self._draw(training))
        images = chosen.fetch(rows)
        if not (training.unlabeled and len(others)):
            return Draft(number, steps, sizes, rows, images, (0,) * len(steps))
        rows_u, sizes_u = self._unlabeled_order.going_round(
            self._in_training(training, number, steps), self._draw(training, "unlabeled")
        )
        return Draft(number, steps, sizes, rows, images, sizes_u, rows_u, others.fetch(rows_u))

    def views(
        self,
        training: Training,
        draft: Draft,
        score_images: ScoreFunction | None = None,
        score_unlabeled: ScoreFunction | None = None,
    ) -> Epoch:
        """Make the views of a part of an epoch, and say what is known of them."""
        chosen, number, steps = self.sets[training.labeled], draft.number, draft.steps
        assert chosen.labels is not None
        pixels = chosen.store.deliver(draft.images)
        first = steps.start * self.batch
        images = self._weak(pixels, training.name, number, "labelled", first)
        strong_images = None
        if training.strong_labeled:
            strong_images = self._strong(pixels, training.name, number, "labelled", first)
        unlabeled = self.nothing()
        strong = self.nothing() if training.strong else None
        if draft.unlabeled_images is not None:
            pixels = self.sets["unlabeled"].store.deliver(draft.unlabeled_images)
            earlier = self._in_training(training, number, range(steps.start))
            first = self._unlabeled_order.images(earlier)
            unlabeled = self._weak(pixels, training.name, number, "unlabelled", first)
            if training.strong:
                strong = self._strong(pixels, training.name, number, "unlabelled", first)
        of_unlabeled: Scores = {} if score_unlabeled is None else score_unlabeled(unlabeled)
        if draft.unlabeled is not None and self.notes:
            rows = self.placement.tensor(draft.unlabeled)
            of_unlabeled = {**of_unlabeled, **{k: note[rows] for k, note in self.notes.items()}}
        return Epoch(
            sizes=draft.sizes,
            unlabeled_sizes=draft.unlabeled_sizes,
            images=images,
            labels=chosen.labels[self.placement.tensor(draft.labeled)],
            unlabeled=unlabeled,
            strong=strong,
            strong_images=strong_images,
            of_images={} if score_images is None else score_images(images),
            of_unlabeled=of_unlabeled,
        )

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Make each pass within the block once: no network may change there."""
        self._said = {}
        try:
            yield
        finally:
            self._said = None

    def score(self, score: ScoreFunction, over: ImageSet, views: int = 1) -> Scores:
        """Score weak views of every image of a set, outside of training."""
        asked = score, over, views
        said = None if self._said is None else self._said.get(asked)
        if said is None:
            said = self._pass(*asked)
            if self._said is not None:
                self._said[asked] = said
        if over != "unlabeled":
            return said
        return {**said, **{name: torch.cat([note] * views) for name, note in self.notes.items()}}

    def note(self, notes: Scores) -> None:
        """Let what is said of every unlabelled image come with its views from now on."""
        self.notes.update(notes)

    def _pass(self, score: ScoreFunction, over: ImageSet, views: int) -> Scores:
        """Score every image of a set; of a small one several views at once."""
        chosen = self.sets[over]
        passes = []
        together = max(1, self._piece_size() // max(1, len(chosen)))
        for first in range(0, views, together):
            for part in self._passed(len(chosen)):
                pixels = chosen.store.deliver(chosen.fetch(np.arange(part.start, part.stop)))
                several = [
                    self._weak(pixels, f"pass over {over}", view, "pass", part.start)
                    for view in range(first, min(first + together, views))
                ]
                passes.append(score_in_pieces(score, torch.cat(several), self.placement))
        return {name: torch.cat([one[name] for one in passes]) for name in passes[0]}

    def count(self, over: ImageSet) -> int:
        """Return how many images a set holds."""
        return len(self.sets[over])

    def labels(self, over: ImageSet) -> Tensor:
        """Return the classes of a labelled set's images, in the order in which they are scored."""
        labels = self.sets[over].labels
        assert labels is not None, "the unlabelled set has no labels"
        return labels

    def label_counts(self, over: ImageSet) -> Tensor:
        """Return how many images of each seen class a labelled set holds."""
        return count_labels(self.labels(over), self.classes)

    def _passed(self, count: int) -> Iterator[range]:
        """Cut a pass over a set as an epoch is cut; one over no images has an empty part."""
        size = self._piece_size()
        fitting = self.limit // VIEWS_SHARE // self._view_bytes() // size
        step = max(1, fitting) * size
        for start in range(0, max(1, count), step):
            yield range(start, min(start + step, count))

    def _piece_size(self) -> int:
        return piece_size(self.placement.scoring_batch, self.sets["unlabeled"].store.side)

    def _view_bytes(self) -> int:
        side = self.sets["unlabeled"].store.side
        return 3 * side * side * self.placement.dtype.itemsize

    def _order(self, training: Training) -> BatchOrder:
        """Return how the labelled images of a training are cut into batches."""
        return BatchOrder(len(self.sets[training.labeled]), self.batch, self.last_batches)

    @property
    def _unlabeled_order(self) -> BatchOrder:
        return BatchOrder(len(self.sets["unlabeled"]), self.unlabeled_batch, self.last_batches)

    def _in_training(self, training: Training, epoch: int, steps: range) -> range:
        """Return the numbers that steps of an epoch have in the whole training."""
        before = epoch * self.steps(training)
        return range(before + steps.start, before + steps.stop)

    def _draw(self, training: Training, over: ImageSet | None = None) -> Draw:
        """Return what draws orders: over a training's labelled images, or another set."""
        count = len(self.sets[over or training.labeled])
        purpose = "epoch" if over is None else "round"
        return lambda number: self._permutation(
            count, self.seed, purpose, self.task, training.name, number
        )

    def _weak(self, pixels: Tensor, name: str, epoch: int, purpose: str, first: int) -> Tensor:
        key = view_key(self.seed, "weak", purpose, self.task, name, epoch)
        positions = _positions(first, pixels)
        return weak_views(
            pixels, key, self.normalization, dtype=self.placement.dtype, positions=positions
        )

    def _strong(self, pixels: Tensor, name: str, epoch: int, purpose: str, first: int) -> Tensor:
        # Unlabelled images were the first to have strong views, and their key names no purpose.
        words = () if purpose == "unlabelled" else (purpose,)
        key = view_key(self.seed, "strong", *words, self.task, name, epoch)
        positions = _positions(first, pixels)
        return strong_views(
            pixels, key, self.normalization, dtype=self.placement.dtype, positions=positions
        )

    def nothing(self) -> Tensor:
        """Return views of no images."""
        side = self.sets["unlabeled"].store.side
        shape = (0, 3, side, side)
        return torch.zeros(shape, dtype=self.placement.dtype, device=self.placement.device)


def _listed(images: ImageRows | list[ImageRows]) -> list[ImageRows]:
    return images if isinstance(images, list) else [images]


def _positions(first: int, pixels: Tensor) -> Tensor:
    return torch.arange(first, first + len(pixels))


def _first_halves(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the first half of each class's images; of an odd count the larger half.

    So a class with a single image is trained on, and not held out.
    """
    first = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        first[places[: -(-len(places) // 2)]] = True
    return first
