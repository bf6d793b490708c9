"""E2E, end-to-end incremental learning (Castro et al. 2018), as the paper compares with it."""

import torch
from torch import Tensor

from distillmatch.methods.forwards import supervised_loss
from distillmatch.methods.method import Batch, TaskInfo, Training
from distillmatch.methods.parts import (
    KeepsPast,
    LabelWeights,
    baseline_rate,
    fine_tuning,
    local_distillation,
    meets_unlabeled,
    past_factor,
    past_logits_of_all,
    weights_before_fine_tuning,
)
from distillmatch.methods.schedule import main_schedule


class EndToEnd(KeepsPast):
    """Cross entropy and distillation per past task, then balanced fine-tuning of all weights."""

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the classifier, then fine-tune it where there is a coreset."""
        rate = baseline_rate(self.config)
        schedule = main_schedule(self.config, rate, fine_tuned=task.coreset)
        weights = weights_before_fine_tuning(self.config, task)

        def supervised(batch: Batch, weights: LabelWeights) -> tuple[Tensor, Tensor]:
            """Return the cross entropy, and the logits of all weak views."""
            views = self.forward(batch, task)
            return supervised_loss(batch, views, weights.loss) / len(batch.labels), views.weak

        def loss(batch: Batch) -> Tensor:
            total, student = supervised(batch, weights)
            if task.past:
                teacher = past_logits_of_all(batch)
                distilled = local_distillation(self.config, task, teacher, student)
                total = torch.add(total, distilled, alpha=past_factor(self.config))
            return total

        training = Training(
            name="classifier",
            network=self.classifier,
            loss=loss,
            schedule=schedule,
            unlabeled=meets_unlabeled(self.config, task),
            strong_labeled=self.learns_strong_labels,
            score_images=self.ask_past if task.past else None,
            score_unlabeled=self.ask_past if task.past else None,
            before=weights.count,
        )
        tuned = fine_tuning(
            self.config,
            task,
            self.classifier,
            rate,
            whole=True,
            loss=lambda batch, weights: supervised(batch, weights)[0],
        )
        return [training, *tuned]
