"""DR, distillation and retrospection (Hou et al. 2018), as the paper compares with it."""

from typing import ClassVar

import torch
from torch import Tensor

from distillmatch.losses import new_task_distillation, past_distillation
from distillmatch.methods.forwards import supervised_loss
from distillmatch.methods.method import Batch, TaskInfo, Training
from distillmatch.methods.parts import (
    KeepsPast,
    baseline_rate,
    local_distillation,
    meets_unlabeled,
    past_factor,
    past_logits_of_all,
)
from distillmatch.methods.schedule import main_schedule
from distillmatch.methods.teacher import TEACHER, teacher_training


class DistillationAndRetrospection(KeepsPast):
    """Distil the past tasks from the last model, the new task from one trained on it alone."""

    asked: ClassVar[tuple[str, ...]] = ("past", TEACHER)

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the new task's teacher, then the classifier; in the first task the latter alone."""
        schedule = main_schedule(self.config, baseline_rate(self.config))
        training = Training(
            name="classifier",
            network=self.classifier,
            loss=lambda batch: self.loss(batch, task),
            schedule=schedule,
            unlabeled=meets_unlabeled(self.config, task),
            strong_labeled=self.learns_strong_labels,
            score_images=self.asking(task),
            score_unlabeled=self.asking(task),
        )
        if not (task.past and task.new):
            return [training]
        return [teacher_training(self, task, calibrated=False), training]

    def loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        """Cross entropy, distillation of the past, distillation of the new task as in GD."""
        views = self.forward(batch, task)
        student = views.weak
        supervised = supervised_loss(batch, views)
        if not task.past:
            return supervised
        config = self.config
        past = past_logits_of_all(batch)
        past_share = 1.0
        if config.dr_distillation == "per-task":
            of_past = local_distillation(config, task, past, student)
        else:
            if config.distillation_shares == "class-share":
                past_share = task.past / task.seen
            of_past = past_distillation(past, student, task.past, config.temperature, squared=False)
        total = torch.add(supervised, of_past, alpha=past_factor(config) * past_share)
        if not task.new:
            return total
        new = past_logits_of_all(batch, TEACHER)
        of_new = new_task_distillation(new, student, task.past, task.seen, config.temperature)
        return torch.add(total, of_new, alpha=task.new / task.seen)
