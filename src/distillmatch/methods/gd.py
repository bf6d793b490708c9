"""GD, global distillation (Lee et al. 2019), as the paper compares with it."""

from typing import Any

from pydantic import Field
from torch import Tensor

from distillmatch.config import MethodOptions
from distillmatch.config.base import Switch
from distillmatch.losses import (
    ensemble_target,
    new_task_distillation,
    past_distillation,
    soft_global_distillation,
)
from distillmatch.methods.method import Batch, Logits, TaskInfo, Training
from distillmatch.methods.parts import TEMPERATURE, fine_tuned_training, fine_tuning, label_loss
from distillmatch.methods.teacher import Taught, TwoTeachers, teacher_logits


class GlobalDistillation(Taught):
    """Distill past and new classes apart, and all together from an ensemble of two teachers."""

    class Options(MethodOptions):
        """GD's own options."""

        calibration: Switch = Field(True, description="calibrate the new task's teacher")

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the new task's teacher, the classifier, and fine-tune where there is a coreset."""
        asks: dict[str, Any] = {}
        if task.past:
            asks = {"ask_labeled": self.ask_both, "ask_unlabeled": self.ask_about_unlabeled}
        main = fine_tuned_training(self, task, before=self.balance_without_coreset, **asks)
        tuned = fine_tuning(
            self,
            task,
            self.labels_and_ensemble,
            self.balance,
            unlabeled=True,
            ask_unlabeled=self.ask_about_unlabeled,
        )
        if not (task.past and task.new):
            return [main, *tuned]
        teacher = self.teacher_training(task, calibrated=self.options.calibration)
        return [teacher, main, *tuned]

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return cross entropy with Q, distillation of the past, distillation of the new task."""
        logits = self.forward(batch, task)
        terms = {"labels and Q": self.of_labels_and_ensemble(logits, batch, task)}
        if task.past:
            terms["distillation"] = (task.past / task.seen) * past_distillation(
                batch.past, logits.weak, task.past, TEMPERATURE
            )
        if task.past and task.new:
            terms["new task"] = (task.new / task.seen) * new_task_distillation(
                teacher_logits(batch), logits.weak, task.past, task.seen, TEMPERATURE
            )
        return terms

    def labels_and_ensemble(self, batch: Batch, task: TaskInfo) -> Tensor:
        """Return the loss of fine-tuning, which keeps Q."""
        return self.of_labels_and_ensemble(self.forward(batch, task), batch, task)

    def of_labels_and_ensemble(self, logits: Logits, batch: Batch, task: TaskInfo) -> Tensor:
        """Return cross entropy and soft global distillation, divided together by all images."""
        labels = label_loss(logits, batch.labels, self.weights)
        if not task.past:
            return labels
        target = batch.unlabeled_answers.target
        total = labels * len(batch.labels) + soft_global_distillation(logits.unlabeled, target)
        return total / len(logits.weak)

    def ask_about_unlabeled(self, images: Tensor, task: TaskInfo) -> TwoTeachers:
        """Ask both teachers about images, and make their target Q."""
        answers = self.ask_both(images, task)
        if answers.new is None:
            target = answers.past[:, : task.past].softmax(dim=1)
        else:
            of_new = answers.past if self.recipe.new_class_share == "past" else answers.new
            target = ensemble_target(
                answers.past[:, : task.past].softmax(dim=1),
                of_new[:, task.past : task.seen].softmax(dim=1),
            )
        return answers._replace(target=target)
