"""What several methods share: the loss of labels, class weights, fine-tuning, baselines."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.losses import class_weights, weighted_cross_entropy_sum
from distillmatch.methods.forward import Batch, Logits, separate_logits
from distillmatch.methods.method import (
    HIGH_RATE,
    Hook,
    Loss,
    Method,
    NetworkBuilder,
    Passes,
    TaskInfo,
    Training,
)
from distillmatch.methods.schedule import fine_tuning_schedule, main_schedule

TEMPERATURE = 2.0
"""T of the distillation of past tasks and of the new task."""
LOW_RATE = 0.005
"""The paper's learning rate of GD, DR and E2E without a coreset."""
WEIGHT_CAP = 10.0
"""The largest class weight."""


def label_sum(logits: Logits, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the cross entropy of labeled images, weighted by class and summed: ℓ_s (eq. 6).

    Where labels are learned by strong views too, it is the mean over both kinds of views.
    """
    total = weighted_cross_entropy_sum(logits.labeled, labels, weights)
    if len(logits.strong_labeled):
        total = (total + weighted_cross_entropy_sum(logits.strong_labeled, labels, weights)) / 2
    return total


def label_loss(logits: Logits, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean cross entropy of labeled images, weighted by class if there are weights."""
    return label_sum(logits, labels, weights) / len(labels)


def label_weights(counts: Tensor) -> Tensor:
    """Return inverse class frequencies among the classes that have labels.

    A class without labels does not count: without a coreset these are all past classes, and the new
    ones would weigh no more than their share of the classes seen.
    """
    present = counts > 0
    weights = torch.full_like(counts, WEIGHT_CAP)
    weights[present] = class_weights(counts[present], cap=WEIGHT_CAP)
    return weights


def is_fine_tuned(method: Method, task: TaskInfo) -> bool:
    """Return whether a task ends with fine-tuning: where there is a coreset, and time for it."""
    stores = task.coreset or (method.fine_tunes_first_task and method.config.coreset > 0)
    return stores and fine_tuning_schedule(method.config, HIGH_RATE).epochs > 0


def fine_tuned_training(method: Method, task: TaskInfo, **changes: Any) -> Training:
    """Return the classifier's training, cut short where fine-tuning follows."""
    tuned = is_fine_tuned(method, task)
    schedule = main_schedule(method.config, method.rate, fine_tuned=tuned)
    return method.training(task, schedule=schedule, **changes)


def fine_tuning(
    method: Method, task: TaskInfo, loss: Loss, before: Hook, *, whole: bool = False, **changes: Any
) -> list[Training]:
    """Return the class-balanced fine-tuning that ends a task, where there is a coreset.

    It is on labeled and stored images, of the last layer alone unless `whole`. `before` must set
    the class weights of the loss.
    """
    if not is_fine_tuned(method, task):
        return []
    values: dict[str, Any] = {
        "name": "fine-tuning",
        "loss": loss,
        "schedule": fine_tuning_schedule(method.config, method.rate),
        "unlabeled": False,
        "strong": False,
        "strong_labeled": False,
        "clip": None,
        "parameters": "all" if whole else "head",
        "head_statistics": method.recipe.statistics.fine_tuning,
        "frozen_labeled": None,
        "frozen_unlabeled": None,
        "before": before,
    }
    return [method.training(task, **(values | changes))]


class Balanced(Method):
    """A method with class weights, whose last layer is fine-tuned on balanced labels.

    Its options have a switch `class_balancing`.
    """

    def __init__(self, config: RunConfig, build: NetworkBuilder) -> None:
        super().__init__(config, build)
        self.weights = self.tuning_weights = torch.ones(1)

    def fine_tuning(self, task: TaskInfo) -> list[Training]:
        """Return the fine-tuning of the last layer, where there is a coreset."""
        return fine_tuning(self, task, self.fine_tuning_loss, self.balance_fine_tuning)

    def balance_fine_tuning(self, passes: Passes, task: TaskInfo) -> None:
        """Count labels for the class weights of fine-tuning."""
        counts = passes.label_counts("labeled")
        balanced = self.options.class_balancing
        self.tuning_weights = label_weights(counts) if balanced else torch.ones_like(counts)

    def fine_tuning_loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        """Return the balanced cross entropy of labeled and stored images."""
        return label_loss(self.forward(batch, task), batch.labels, self.tuning_weights)


class Baseline(Method):
    """What E2E, DR and GD share: distillation from the past classifier, rates, batch statistics."""

    weights: Tensor | None = None
    """Class weights of the cross entropy; without them all classes weigh alike."""

    keeps_past: ClassVar[bool] = True
    learning_rate: ClassVar[float] = LOW_RATE

    @property
    def distillation_factor(self) -> float:
        """What E2E and DR multiply the distillation of past tasks by."""
        squared = self.recipe.distillation_factor == "temperature squared"
        return TEMPERATURE**2 if squared else 1.0

    def balance_without_coreset(self, passes: Passes, task: TaskInfo) -> None:
        """Weigh classes by their labels, unless there is a coreset: then fine-tuning does it.

        Before that, the few stored images would outweigh all new ones.
        """
        counts = passes.label_counts("labeled")
        self.weights = None if is_fine_tuned(self, task) else label_weights(counts)

    def balance(self, passes: Passes, task: TaskInfo) -> None:
        """Weigh classes by the labels of the task and the coreset."""
        self.weights = label_weights(passes.label_counts("labeled"))

    def forward(self, batch: Batch, task: TaskInfo) -> Logits:
        """Return the classifier's logits; labeled images share statistics as the recipe says.

        In the first task nothing is distilled, and both recipes learn from one group of images.
        """
        alone = self.recipe.statistics.labeled == "alone" and task.past and len(batch.unlabeled)
        if alone:
            return separate_logits(self.classifier, batch, task.seen)
        return super().forward(batch, task)
