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
from distillmatch.methods.method import Batch, ScoreFunction, Scores, TaskInfo, Training
from distillmatch.methods.parts import (
    KeepsPast,
    LabelWeights,
    baseline_rate,
    fine_tuning,
    forward_weak,
    meets_unlabeled,
    past_logits_of_all,
    supervised_logits,
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
            score_images=self.asking(task),
            score_unlabeled=self.asking_both(task),
            before=weights.count,
        )
        if not task.past:
            return [training]
        trainings = [training, *fine_tuning(self.config, task, self.classifier, rate)]
        if not task.new:
            return trainings
        return [teacher_training(self, task, calibrated=self.config.calibration), *trainings]

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
        config = self.config
        student = forward_weak(self.classifier, batch, task.seen)
        labeled, unlabeled = torch.split(student, [len(batch.images), len(batch.unlabeled)])
        logits = supervised_logits(config, self.classifier, batch, task, labeled)
        supervised = weights.loss(logits, batch.labels)
        if not task.past:
            return supervised / len(labeled)
        past_slots, new_slots = torch.split(student, [task.past, task.new], dim=1)
        past = past_logits_of_all(batch)
        of_past = past_distillation(past, past_slots, task.past, config.temperature)
        if not task.new:  # Q is then what the past model says
            target = batch.of_unlabeled["past"][:, : task.past].softmax(dim=1)
            of_all = soft_global_distillation(unlabeled, target)
            return (supervised + of_all) / len(student) + of_past
        new = past_logits_of_all(batch, TEACHER)[:, task.past :]
        of_new = new_task_distillation(new, new_slots, 0, task.new, config.temperature)
        of_all = soft_global_distillation(unlabeled, batch.of_unlabeled[ENSEMBLE])
        total = (supervised + of_all) / len(student)
        total = torch.add(total, of_past, alpha=task.past / task.seen)
        return torch.add(total, of_new, alpha=task.new / task.seen)
