"""A method of one's own: learning without forgetting, with consistency on strong views.

distillmatch run --method own_method:LwfMatch --options past_weight=2 --out result
"""

import torch
from torch import Tensor

from distillmatch.losses import consistency_loss, past_distillation, weighted_cross_entropy_sum
from distillmatch.methods import Batch, Method, Scores, TaskInfo, Training, main_schedule
from distillmatch.networks import frozen_statistics


class LwfMatch(Method):
    """Cross entropy, one distillation over all past classes, and FixMatch's consistency."""

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the classifier with the paper's schedule, at a learning rate of 0.1."""
        schedule = main_schedule(self.config, 0.1)
        ask = self.ask_past if task.past else None
        return [
            Training(
                name="classifier",
                network=self.classifier,
                loss=lambda batch: self.loss(batch, task),
                schedule=schedule,
                strong=True,
                clip=self.config.clip,
                score_images=ask,
                score_unlabeled=ask,
            )
        ]

    def loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        """Return the loss of one batch."""
        logits = self.classifier(torch.cat([batch.images, batch.unlabeled]))[:, : task.seen]
        labeled, unlabeled = logits.split([len(batch.images), len(batch.unlabeled)])
        total = weighted_cross_entropy_sum(labeled, batch.labels) / len(labeled)
        if batch.strong is not None and len(batch.strong) > 0:
            with frozen_statistics(self.classifier):
                strong = self.classifier(batch.strong)[:, : task.seen]
            total = total + consistency_loss(unlabeled, strong, self.config.consistency_threshold)
        if task.past:
            past = torch.cat([batch.of_images["past"], batch.of_unlabeled["past"]])
            distilled = past_distillation(past, logits, task.past, self.config.temperature)
            total = total + float(self.config.options.get("past_weight", 1.0)) * distilled
        return total

    def ask_past(self, images: Tensor) -> Scores:
        """Ask the last task's classifier about a whole epoch's views."""
        return {"past": self.networks["past"](images)}

    def end_task(self, task: TaskInfo) -> None:
        """Keep a frozen copy of the classifier for the next task."""
        self.frozen_copy("past", of="classifier")
