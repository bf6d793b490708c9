"""GD, global distillation (Lee et al. 2019), as the paper compares with it."""

from typing import ClassVar

import torch
from torch import Tensor

from distillmatch.losses import (
    ensemble_target_from_logits,
    new_task_distillation,
    past_distillation,
    soft_global_distillation,
)
from distillmatch.methods.forwards import supervised_loss
from distillmatch.methods.method import Batch, ScoreFunction, Scores, TaskInfo, Training
from distillmatch.methods.parts import (
    KeepsPast,
    LabelWeights,
    baseline_rate,
    fine_tuning,
    meets_unlabeled,
    past_logits_of_all,
    weights_before_fine_tuning,
)
from distillmatch.methods.schedule import main_schedule
from distillmatch.methods.teacher import TEACHER, teacher_training

ENSEMBLE = "ensemble"


class GlobalDistillation(KeepsPast):
    """Distil past and new classes apart, and all together from an ensemble of two teachers."""

    asked: ClassVar[tuple[str, ...]] = ("past", TEACHER)

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the new task's teacher, the classifier, and fine-tune where there is a coreset."""
        rate = baseline_rate(self.config)
        schedule = main_schedule(self.config, rate, fine_tuned=task.coreset)
        weights = weights_before_fine_tuning(self.config, task)
        training = Training(
            name="classifier",
            network=self.classifier,
            loss=lambda batch: self.loss(batch, task, weights),
            schedule=schedule,
            unlabeled=meets_unlabeled(self.config, task),
            strong_labeled=self.learns_strong_labels,
            score_images=self.asking(task),
            score_unlabeled=self.asking_both(task),
            before=weights.count,
        )
        if not task.past:
            return [training]
        tuned = fine_tuning(
            self.config,
            task,
            self.classifier,
            rate,
            loss=lambda batch, weights: self.of_labels_and_all(batch, task, weights)[0],
            score_unlabeled=self.asking_both(task),
        )
        if not task.new:
            return [training, *tuned]
        teacher = teacher_training(self, task, calibrated=self.config.calibration)
        return [teacher, training, *tuned]

    def asking_both(self, task: TaskInfo) -> ScoreFunction | None:
        """Return what asks about unlabelled images: the frozen networks, and Q of both together."""
        ask = self.asking(task)
        if ask is None or not task.new:
            return ask

        def ask_both(images: Tensor) -> Scores:
            scores = ask(images)
            return {**scores, ENSEMBLE: self.ensemble(scores, task)}

        return ask_both

    def ensemble(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Return Q for images that both frozen networks were asked about."""
        return ensemble_target_from_logits(
            scores["past"], scores[TEACHER], task.past, task.seen, self.config.ensemble_share
        )

    def loss(self, batch: Batch, task: TaskInfo, weights: LabelWeights) -> Tensor:
        """Cross entropy and Q together, distillation of the past, distillation of the new task."""
        total, student = self.of_labels_and_all(batch, task, weights)
        if not task.past:
            return total
        temperature = self.config.temperature
        past_slots, new_slots = torch.split(student, [task.past, task.new], dim=1)
        of_past = past_distillation(past_logits_of_all(batch), past_slots, task.past, temperature)
        if not task.new:
            return total + of_past
        new = past_logits_of_all(batch, TEACHER)[:, task.past :]
        of_new = new_task_distillation(new, new_slots, 0, task.new, temperature)
        total = torch.add(total, of_past, alpha=task.past / task.seen)
        return torch.add(total, of_new, alpha=task.new / task.seen)

    def of_labels_and_all(
        self, batch: Batch, task: TaskInfo, weights: LabelWeights
    ) -> tuple[Tensor, Tensor]:
        """Return cross entropy and Q together, and the logits of all weak views."""
        views = self.forward(batch, task)
        supervised = supervised_loss(batch, views, weights.loss)
        if not task.past:
            return supervised / len(batch.labels), views.weak
        if task.new:
            target = batch.of_unlabeled[ENSEMBLE]
        else:  # Q is then what the past model says
            target = batch.of_unlabeled["past"][:, : task.past].softmax(dim=1)
        total = supervised + soft_global_distillation(views.unlabeled, target)
        return total / len(views.weak), views.weak
