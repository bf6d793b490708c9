"""A copy of the pretrained network, tuned for a task's classes beside the frozen one.

It starts as the classifier on the frozen features. It is tuned by the labels and, as in WorldMatch,
by strong views of the unlabeled images, whose targets are the frozen classifier's predictions on
weak views. That one knows the past classes, so they are kept without labels where the camera shows
them.

A quarter of each class's labels and of the unlabeled images is held out. The copy is kept only if
both networks together classify more of them correctly than the frozen one alone, or as many with a
lower cross entropy. The label of an unlabeled image is the past class that the frozen network is
sure of.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from distillmatch.config import RunConfig
from distillmatch.engine import Progress
from distillmatch.engine.data import TaskData
from distillmatch.learner.backbone import Backbone
from distillmatch.learner.feature_classifier import FAMILIAR, FeatureClassifier
from distillmatch.learner.feature_reader import FeatureReader
from distillmatch.learner.inputs import Pixels
from distillmatch.learner.keeper import Keeper
from distillmatch.learner.task import Task
from distillmatch.learner.trained import bytes_of, run_trainings
from distillmatch.methods import Batch, Method, Past, TaskInfo, Training
from distillmatch.randomness import permutation
from distillmatch.runs.checkpoints import checksum
from distillmatch.streams import Coreset

HELD_OUT = 4
"""One in so many labeled images of a class, and of the unlabeled ones, is held out."""
TRAINING: dict[str, Any] = {
    "method": "worldmatch",
    "batch": 16,
    "unlabeled_batch": 16,
    "learning_rate": 2e-4,
    "optimizer": "adamw",
    "schedule": "cosine",
    "strong_labels": True,
}
SMOOTH = 1e-6
"""Added to features before their root is taken, whose slope at 0 has no end."""


class FeatureNetwork(nn.Module):
    """A network with the linear classifier on its compressed features."""

    power: Tensor

    def __init__(
        self, backbone: nn.Module, statistics: FeatureClassifier, smooth: float = 0.0
    ) -> None:
        super().__init__()
        power, weights, biases = statistics.linear()
        self.backbone, self.smooth = backbone, smooth
        self.register_buffer("power", torch.tensor(power))
        self.head = nn.Linear(weights.shape[1], weights.shape[0])
        self.head.load_state_dict(
            {"weight": torch.from_numpy(weights), "bias": torch.from_numpy(biases)}
        )
        self.to(next(backbone.parameters()).device)

    def train(self, mode: bool = True) -> "FeatureNetwork":
        """Stay in evaluation: a few images would spoil the statistics of the normalization."""
        del mode
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of normalized images, in full precision."""
        features = self.backbone(images).float()
        with torch.autocast(features.device.type, enabled=False):
            compressed = features.sign() * (features.abs() + self.smooth) ** self.power
            logits: Tensor = self.head(compressed)
        return logits


class Beside(nn.Module):
    """The frozen network's features, followed by the logits of the tuned copy."""

    def __init__(self, frozen: nn.Module, tuned: FeatureNetwork) -> None:
        super().__init__()
        self.frozen, self.tuned = frozen, tuned

    def forward(self, images: Tensor) -> Tensor:
        """Return a row of both for each image."""
        return torch.cat([self.frozen(images).float(), self.tuned(images)], dim=1)


def tuned_copy(backbone: Backbone, statistics: FeatureClassifier) -> FeatureNetwork:
    """Return a copy of a network, with a classifier's statistics as its head."""
    return FeatureNetwork(deepcopy(backbone.network), statistics, SMOOTH)


def beside(backbone: Backbone, tuned: FeatureNetwork) -> Backbone:
    """Return what turns images into rows of both networks."""
    tuned.requires_grad_(False).eval()
    digest = checksum(backbone.digest, tuned.state_dict())
    width = backbone.dimension + tuned.head.out_features
    network = Beside(backbone.network, tuned)
    return replace(backbone, network=network, dimension=width, digest=digest)


class _FineTuning(Method):
    """Labels by weak and strong views, other images by strong views and a frozen classifier."""

    strong_views: ClassVar[bool] = True
    clip: ClassVar[float | None] = 1.0

    def __init__(self, config: RunConfig, backbone: Backbone, teacher: FeatureClassifier) -> None:
        self.teacher = FeatureNetwork(backbone.network, teacher)
        self.copy = tuned_copy(backbone, teacher).requires_grad_()
        super().__init__(config, lambda *_: self.copy)

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the copy once."""
        return [self.training(task, name="fine-tuning", frozen_unlabeled=self.taught)]

    def taught(self, images: Tensor, task: TaskInfo) -> Past:
        """Return the frozen classifier's logits."""
        return Past(self.teacher(images))

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return the cross entropies of labels, and of what the frozen classifier says."""
        assert batch.strong_images is not None and batch.strong is not None
        views = [batch.images, batch.strong_images, batch.strong]
        logits = self.classifier(torch.cat([one for one in views if len(one)]))
        of_labeled, of_strong = logits.split([2 * len(batch.labels), len(batch.strong)])
        terms = {"labels": cross_entropy(of_labeled, batch.labels.repeat(2))}
        if len(of_strong):
            said = batch.unlabeled_outputs.past.softmax(dim=1)
            terms["agreement"] = cross_entropy(of_strong, said)
        return terms


def fine_tune(
    task: Task,
    backbone: Backbone,
    known: FeatureClassifier,
    progress: Progress | None,
    keeper: Keeper | None,
) -> tuple[FeatureNetwork | None, dict[str, Any]]:
    """Tune a copy; return it if both networks together are better, and the comparison.

    `known` is what was known of the classes before the task. The comparison is a `FineTuned` of the
    learner's schema.
    """
    assert task.pixels is not None
    (images, unlabeled), rows, config = task.pixels, task.environment.images, task.config
    slots, seen = task.slots, len(task.classes)
    held, aside = _held_out(slots, len(rows), config.seed)
    teacher, _ = known.after(task.images[~held], slots[~held], seen, rows[~aside], config.seed)
    past = np.setdiff1d(np.arange(seen), slots)
    sure = teacher.familiarity(rows) >= teacher.threshold(FAMILIAR)
    looks_past = aside & sure & np.isin(teacher.logits(rows).argmax(1), past)
    comparison: dict[str, Any] = {"epochs": task.fine_tune, "kept": False, "bytes": 0}
    comparison |= {"labeled": int(held.sum()), "frozen": None, "tuned": None}
    comparison |= {"past": int(looks_past.sum()), "same": None}
    if not comparison["labeled"] or comparison["past"] < len(past):
        return None, comparison

    config = config.replace(epochs=task.fine_tune, **TRAINING)
    method, nothing = _FineTuning(config, backbone, teacher), Coreset(0, backbone.side)
    data = TaskData(
        TaskInfo(len(task.sizes) - 1, task.sizes, last=False, coreset=False),
        (images[~held], slots[~held]),
        (nothing.images, nothing.labels),
        unlabeled[~aside],
        config,
        normalization=backbone.normalization,
        placement=backbone.placement,
    )
    trainings = method.trainings(data.info)
    run_trainings(config, method, trainings, data, nothing, task.name, progress, keeper)

    both, width = FeatureReader(beside(backbone, method.copy), None), backbone.dimension

    def logits(asked: Pixels) -> list[Tensor]:
        """Return those of the frozen network alone, and of both."""
        found = both.read(asked, "images held out")[0]
        alone = teacher.logits(found[:, :width])
        return [torch.from_numpy(one) for one in (alone, (alone + found[:, width:]) / 2)]

    labels, found = torch.from_numpy(slots[held]), logits(images[held])
    frozen, tuned = (_percent(one.argmax(1), labels) for one in found)
    unsure, less_unsure = (float(cross_entropy(one, labels)) for one in found)
    same = 100.0
    if len(past):
        before, after = logits(unlabeled[looks_past])
        same = _percent(before.argmax(1), after.argmax(1))
    comparison |= {"frozen": frozen, "tuned": tuned, "same": same if len(past) else None}
    gained, lost = (seen - len(past)) * (tuned - frozen), len(past) * (100 - same)
    if (gained, -less_unsure) <= (lost, -unsure):
        return None, comparison
    return method.copy, comparison | {"kept": True, "bytes": bytes_of(method.copy)}


def _held_out(
    slots: NDArray[np.int64], unlabeled: int, seed: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Mark the labeled and the unlabeled images that are compared on."""
    held, aside = np.zeros(len(slots), np.bool_), np.zeros(unlabeled, np.bool_)
    for slot in np.unique(slots).tolist():
        held[_some(np.flatnonzero(slots == slot), seed, slot)] = True
    aside[_some(np.arange(unlabeled), seed, "unlabeled")] = True
    return held, aside


def _some(places: NDArray[np.int64], seed: int, of: int | str) -> NDArray[np.int64]:
    """Return a random part of the places: one in `HELD_OUT`."""
    order = permutation(len(places), seed, "fine-tuning", of)
    return places[order[: len(places) // HELD_OUT]]


def _percent(answers: Tensor, right: Tensor) -> float:
    return 100 * float((answers == right).double().mean())
