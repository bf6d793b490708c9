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
from distillmatch.methods.method import Batch, TaskInfo, Training
from distillmatch.methods.parts import (
    KeepsPast,
    LabelWeights,
    baseline_rate,
    fine_tuning,
    forward_all,
    meets_unlabeled,
    past_logits_of_all,
    supervised_logits,
)
from distillmatch.methods.schedule import main_schedule
from distillmatch.methods.teacher import TEACHER, teacher_training


class GlobalDistillation(KeepsPast):
    """Distil past and new classes apart, and all together from an ensemble of two teachers."""

    asked: ClassVar[tuple[str, ...]] = ("past", TEACHER)

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the new task's teacher, the classifier, and fine-tune where there is a coreset."""
        rate = baseline_rate(self.config)
        schedule = main_schedule(self.config, rate, fine_tuned=task.coreset)
        weights = LabelWeights(self.config)
        training = Training(
            name="classifier",
            network=self.classifier,
            loss=lambda batch: self.loss(batch, task, weights),
            schedule=schedule,
            unlabeled=meets_unlabeled(self.config, task),
            score_images=self.asking(task),
            score_unlabeled=self.asking(task),
            before=weights.count,
        )
        if not task.past:
            return [training]
        trainings = [training, *fine_tuning(self.config, task, self.classifier, rate)]
        if not task.new:
            return trainings
        return [teacher_training(self, task, calibrated=self.config.calibration), *trainings]

    def loss(self, batch: Batch, task: TaskInfo, weights: LabelWeights) -> Tensor:
        """Cross entropy and Q together, distillation of the past, distillation of the new task."""
        labeled, unlabeled = forward_all(self.classifier, batch, task.seen)
        logits = supervised_logits(self.config, self.classifier, batch, task, labeled)
        supervised = weights.loss(logits, batch.labels)
        if not task.past:
            return supervised / len(labeled)
        config, student = self.config, torch.cat([labeled, unlabeled])
        past = past_logits_of_all(batch)
        of_past = past_distillation(past, student, task.past, config.temperature)
        if not task.new:  # Q is then what the past model says
            target = batch.of_unlabeled["past"][:, : task.past].softmax(dim=1)
            of_all = soft_global_distillation(unlabeled, target)
            return (supervised + of_all) / (len(labeled) + len(unlabeled)) + of_past
        new = past_logits_of_all(batch, TEACHER)
        of_new = new_task_distillation(new, student, task.past, task.seen, config.temperature)
        target = ensemble_target_from_logits(
            batch.of_unlabeled["past"],
            batch.of_unlabeled[TEACHER],
            task.past,
            task.seen,
            config.ensemble_share,
        )
        of_all = soft_global_distillation(unlabeled, target)
        return (
            (supervised + of_all) / (len(labeled) + len(unlabeled))
            + task.past / task.seen * of_past
            + task.new / task.seen * of_new
        )
