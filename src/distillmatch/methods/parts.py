"""What several methods share: the loss of labels, class weights, fine-tuning, teachers."""

from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from distillmatch import losses
from distillmatch.config import RunConfig
from distillmatch.methods.forward import Batch, Logits, joint_logits, separate_logits
from distillmatch.methods.method import (
    Hook,
    Loss,
    Method,
    NetworkBuilder,
    Passes,
    TaskInfo,
    Training,
)
from distillmatch.methods.schedule import fine_tuning_schedule, main_schedule

TEMPERATURE = 2.0  # T of the distillation of past tasks and of the new task
LOW_RATE = 0.005  # the paper's learning rate of GD, DR and E2E without a coreset
WEIGHT_CAP = 10.0
TEACHER = "teacher"


def label_sum(logits: Logits, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the cross entropy of labeled images, weighted by class and summed: ℓ_s (eq. 6).

    Where labels are learned by strong views too, it is the mean over both kinds of views.
    """
    total = losses.weighted_cross_entropy_sum(logits.labeled, labels, weights)
    if len(logits.strong_labeled):
        total = (
            total + losses.weighted_cross_entropy_sum(logits.strong_labeled, labels, weights)
        ) / 2
    return total


def label_loss(logits: Logits, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean cross entropy of labeled images, weighted by class if there are weights."""
    return label_sum(logits, labels, weights) / len(labels)


def label_weights(counts: Tensor) -> Tensor:
    """Return inverse class frequencies among the classes that have labels."""
    present = counts > 0
    weights = torch.full_like(counts, WEIGHT_CAP)
    weights[present] = losses.class_weights(counts[present], cap=WEIGHT_CAP)
    return weights


class FineTuned(Method):
    """A method whose tasks end with fine-tuning, where there is a coreset, and time for it."""

    def is_fine_tuned(self, task: TaskInfo) -> bool:
        """Return whether a task ends with fine-tuning."""
        stores = task.coreset or (self.fine_tunes_first_task and self.config.coreset > 0)
        return stores and fine_tuning_schedule(self.config, self.rate).epochs > 0

    def main_training(self, task: TaskInfo, **changes: Any) -> Training:
        """Return the classifier's training, cut short where fine-tuning follows."""
        tuned = self.is_fine_tuned(task)
        schedule = main_schedule(self.config, self.rate, fine_tuned=tuned)
        return self.training(task, schedule=schedule, **changes)

    def fine_tuning(
        self, task: TaskInfo, loss: Loss, before: Hook, **changes: Any
    ) -> list[Training]:
        """Return the class-balanced fine-tuning that ends a task, where there is a coreset.

        It trains the last layer unless `parameters` are all; `before` sets the class weights.
        """
        schedule = fine_tuning_schedule(self.config, self.rate)
        values: dict[str, Any] = {
            "unlabeled": False,
            "parameters": "head",
            "head_statistics": self.recipe.statistics.fine_tuning,
            "average_decay": self.config.weight_averaging,
            "before": before,
        }
        tuning = Training("fine-tuning", self.classifier, loss, schedule, **(values | changes))
        return [tuning] if self.is_fine_tuned(task) else []


class Balanced(FineTuned):
    """A method with class weights, whose last layer is fine-tuned on balanced labels.

    Its options have `class_balancing` and `consistency_threshold`.
    """

    strong_views: ClassVar[bool] = True
    keeps_past: ClassVar[bool] = True
    clip: ClassVar[float | None] = 1.0
    fine_tunes_first_task: ClassVar[bool] = True

    def __init__(self, config: RunConfig, build: NetworkBuilder) -> None:
        super().__init__(config, build)
        self.weights = self.tuning_weights = torch.ones(1)

    @property
    def confidence(self) -> float:
        """τ_FM, the confidence from which a weak view teaches its strong view."""
        chosen: float | None = self.options.consistency_threshold
        return chosen or self.recipe.consistency_threshold

    def head_tuning(self, task: TaskInfo) -> list[Training]:
        """Return the fine-tuning of the last layer, where there is a coreset."""
        return self.fine_tuning(task, self.fine_tuning_loss, self.balance_fine_tuning)

    def balance_fine_tuning(self, passes: Passes, task: TaskInfo) -> None:
        """Count labels for the class weights of fine-tuning."""
        counts = passes.label_counts("labeled")
        balanced = self.options.class_balancing
        self.tuning_weights = label_weights(counts) if balanced else torch.ones_like(counts)

    def fine_tuning_loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        """Return the balanced cross entropy of labeled and stored images."""
        return label_loss(self.forward(batch, task), batch.labels, self.tuning_weights)


class Baseline(FineTuned):
    """What E2E, DR and GD share: distillation from the past classifier, rates, batch statistics."""

    weights: Tensor | None = None
    """Class weights of the cross entropy; without them all classes weigh alike."""

    keeps_past: ClassVar[bool] = True
    learning_rate: ClassVar[float] = LOW_RATE

    def past_tasks(self, logits: Logits, batch: Batch, task: TaskInfo) -> Tensor:
        """Return the distillation of each past task (eq. 1), by the recipe's factor."""
        squared = self.recipe.distillation_factor == "temperature squared"
        kept = losses.per_task_distillation(batch.past, logits.weak, task.sizes[:-1], TEMPERATURE)
        return (TEMPERATURE**2 if squared else 1.0) * kept

    def balance_without_coreset(self, passes: Passes, task: TaskInfo) -> None:
        """Weigh classes by their labels, unless there is a coreset: then fine-tuning does it.

        Before that, the few stored images would outweigh all new ones.
        """
        counts = passes.label_counts("labeled")
        self.weights = None if self.is_fine_tuned(task) else label_weights(counts)

    def balance(self, passes: Passes, task: TaskInfo) -> None:
        """Weigh classes by the labels of the task and the coreset."""
        self.weights = label_weights(passes.label_counts("labeled"))

    def forward(self, batch: Batch, task: TaskInfo) -> Logits:
        """Return the classifier's logits; labeled images share statistics as the recipe says.

        In the first task nothing is distilled, and both recipes learn from one group of images.
        """
        alone = self.recipe.statistics.labeled == "alone" and task.past and len(batch.unlabeled)
        logits = separate_logits if alone else joint_logits
        return logits(self.classifier, batch, task.seen)


class TwoTeachers(NamedTuple):
    """Logits of the past classifier and of the new task's teacher.

    There is no teacher where a task only brings more images of known classes. `target` is GD's Q
    for unlabeled images.
    """

    past: Tensor
    new: Tensor | None = None
    target: Tensor | None = None


class Taught(Baseline):
    """A baseline with a teacher of the new task beside the past classifier: DR and GD."""

    calibrates: bool = False
    """Whether the teacher also learns to be uncertain about stored and unlabeled images.

    Otherwise unlabeled images take part in its batch statistics alone.
    """

    def teacher_training(self, task: TaskInfo) -> list[Training]:
        """Return the teacher's training, anew in every task after the first with new classes."""
        if not (task.past and task.new):
            return []
        network = self.start_afresh(TEACHER, task, from_past=self.recipe.teacher_start == "past")
        labeled: Any = "labeled" if self.calibrates else "new"
        schedule = main_schedule(self.config, self.rate)
        loss = partial(new_task_loss, network, calibrated=self.calibrates)
        return [Training(TEACHER, network, loss, schedule, labeled=labeled)]

    def teacher_outputs(self, images: Tensor, task: TaskInfo) -> TwoTeachers:
        """Return the logits of the past classifier and of the teacher."""
        new = self.networks[TEACHER](images) if task.new else None
        return TwoTeachers(self.networks["past"](images), new)

    def new_task(self, logits: Logits, batch: Batch, task: TaskInfo) -> Tensor:
        """Return the distillation of the new task from the teacher, by the share of its classes."""
        taught = torch.cat([batch.labeled_outputs.new, batch.unlabeled_outputs.new])
        kept = losses.new_task_distillation(taught, logits.weak, task.past, task.seen, TEMPERATURE)
        return (task.new / task.seen) * kept


def new_task_loss(network: nn.Module, batch: Batch, task: TaskInfo, *, calibrated: bool) -> Tensor:
    """Return the cross entropy over the new classes; calibrated, plus KL(uniform ‖ p) on the rest.

    The rest are stored and unlabeled images.
    """
    new = batch.labels >= task.past
    logits = joint_logits(network, batch, task.seen)
    labeled = logits.labeled[:, task.past :]
    total = losses.weighted_cross_entropy_sum(labeled, batch.labels - task.past, mask=new)
    supervised = total / new.sum().clamp(min=1)
    if not calibrated:
        return supervised
    others = torch.cat([~new, new.new_ones(len(batch.unlabeled))])
    return supervised + losses.confidence_calibration(logits.weak[:, task.past :], others)
