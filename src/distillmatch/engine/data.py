"""A task's data on the device: image sets, the order of an epoch, and its views."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distillmatch.engine.device import Placement
from distillmatch.engine.scoring import score_in_pieces
from distillmatch.methods import ImageSet, Scores, Training
from distillmatch.methods.method import ScoreFunction, count_labels
from distillmatch.randomness import permutation
from distillmatch.views import Normalization, strong_views, view_key, weak_views


@dataclass(frozen=True)
class Images:
    """Images with their labels, on the device; unlabelled ones have no labels."""

    pixels: Tensor
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.pixels)


@dataclass(frozen=True)
class Epoch:
    """All the views of one epoch, in the order the steps take them."""

    steps: int
    images: Tensor
    labels: Tensor
    unlabeled: Tensor
    strong: Tensor | None
    of_images: Scores
    of_unlabeled: Scores


class TaskData:
    """One task's labelled, stored and unlabelled images, and everything drawn from them.

    All draws are functions of the seed, the task, the training and the epoch: there is no state
    that an interruption could lose. `truth` is kept apart and given only to methods that need it.
    """

    def __init__(
        self,
        task: int,
        classes: int,
        labeled: tuple[NDArray[np.uint8], NDArray[np.int64]],
        stored: tuple[NDArray[np.uint8], NDArray[np.int64]],
        unlabeled: NDArray[np.uint8],
        *,
        normalization: Normalization,
        placement: Placement,
        seed: int,
        batch: int,
        unlabeled_batch: int,
        truth: NDArray[np.int64] | None = None,
    ) -> None:
        self.task = task
        self.classes = classes
        self.normalization = normalization
        self.placement = placement
        self.seed = seed
        self.batch = batch
        self.unlabeled_batch = unlabeled_batch
        all_images = np.concatenate([labeled[0], stored[0]])
        all_labels = np.concatenate([labeled[1], stored[1]])
        first = _first_halves(all_labels)
        self.sets: dict[ImageSet, Images] = {
            "labeled": self._images(all_images, all_labels),
            "new": self._images(*labeled),
            "coreset": self._images(*stored),
            "first-half": self._images(all_images[first], all_labels[first]),
            "second-half": self._images(all_images[~first], all_labels[~first]),
            "unlabeled": self._images(unlabeled),
        }
        self.truth = None if truth is None else placement.tensor(truth)

    def _images(self, pixels: NDArray[np.uint8], labels: NDArray[np.int64] | None = None) -> Images:
        return Images(
            self.placement.tensor(pixels).permute(0, 3, 1, 2),
            None if labels is None else self.placement.tensor(labels),
        )

    def steps(self, training: Training) -> int:
        """Return the steps of an epoch: one pass over the labelled images."""
        return -(-len(self.sets[training.labeled]) // self.batch)

    def epoch(
        self,
        training: Training,
        number: int,
        score_images: ScoreFunction | None = None,
        score_unlabeled: ScoreFunction | None = None,
    ) -> Epoch:
        """Draw an epoch: which images each step takes, their views, and what is known of them."""
        steps = self.steps(training)
        chosen = self.sets[training.labeled]
        assert chosen.labels is not None
        order = self.placement.tensor(self._labeled_order(training, number, steps))
        images = self._weak(chosen.pixels[order], training.name, number, "labelled")
        unlabeled, strong = self.nothing(), None
        of_unlabeled: Scores = {}
        if training.unlabeled and len(self.sets["unlabeled"]):
            order_u = self.placement.tensor(self._unlabeled_order(training, number, steps))
            pixels = self.sets["unlabeled"].pixels[order_u]
            unlabeled = self._weak(pixels, training.name, number, "unlabelled")
            if training.strong:
                key = view_key(self.seed, "strong", self.task, training.name, number)
                strong = strong_views(pixels, key, self.normalization, dtype=self.placement.dtype)
            of_unlabeled = {} if score_unlabeled is None else score_unlabeled(unlabeled)
            if self.truth is not None:
                of_unlabeled["truth"] = self.truth[order_u]
        else:
            strong = self.nothing() if training.strong else None
            if score_unlabeled is not None:
                of_unlabeled = score_unlabeled(unlabeled)
        return Epoch(
            steps=steps,
            images=images,
            labels=chosen.labels[order],
            unlabeled=unlabeled,
            strong=strong,
            of_images={} if score_images is None else score_images(images),
            of_unlabeled=of_unlabeled,
        )

    def score(self, score: ScoreFunction, over: ImageSet, views: int = 1) -> Scores:
        """Score weak views of every image of a set, outside of training."""
        passes = []
        for view in range(views):
            images = self._weak(self.sets[over].pixels, f"pass over {over}", view, "pass")
            passes.append(score_in_pieces(score, images, self.placement))
        scores = {name: torch.cat([one[name] for one in passes]) for name in passes[0]}
        if over == "unlabeled" and self.truth is not None:
            scores["truth"] = self.truth.repeat(views)
        return scores

    def label_counts(self, over: ImageSet) -> Tensor:
        """Return how many images of each seen class a labelled set holds."""
        labels = self.sets[over].labels
        assert labels is not None, "the unlabelled set has no labels to count"
        return count_labels(labels, self.classes)

    def _labeled_order(self, training: Training, epoch: int, steps: int) -> NDArray[np.int64]:
        """Return every labelled image once; the last step is filled up with more of the same order.

        Steps of equal shape can be captured, and normalization never meets a tiny batch.
        """
        order = permutation(
            len(self.sets[training.labeled]), self.seed, "epoch", self.task, training.name, epoch
        )
        return np.resize(order, steps * self.batch)

    def _unlabeled_order(self, training: Training, epoch: int, steps: int) -> NDArray[np.int64]:
        """Return the next images of a stream that goes round independently of the epochs."""
        count, taken = len(self.sets["unlabeled"]), steps * self.unlabeled_batch
        start, end = epoch * taken, (epoch + 1) * taken
        rounds = range(start // count, -(-end // count))
        orders = [
            permutation(count, self.seed, "round", self.task, training.name, number)
            for number in rounds
        ]
        offset = start - rounds.start * count
        return np.concatenate(orders)[offset : offset + taken]

    def _weak(self, pixels: Tensor, name: str, epoch: int, purpose: str) -> Tensor:
        key = view_key(self.seed, "weak", purpose, self.task, name, epoch)
        return weak_views(pixels, key, self.normalization, dtype=self.placement.dtype)

    def nothing(self) -> Tensor:
        """Return views of no images."""
        shape = (0, *self.sets["unlabeled"].pixels.shape[1:])
        return torch.zeros(shape, dtype=self.placement.dtype, device=self.placement.device)


def _first_halves(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the first half of each class's images; of an odd count the larger half.

    So a class with a single image is trained on, and not held out.
    """
    first = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        first[places[: -(-len(places) // 2)]] = True
    return first
