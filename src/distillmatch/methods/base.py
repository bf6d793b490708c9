"""Base: cross entropy on labelled images, and nothing against forgetting but the coreset."""

from torch import Tensor

from distillmatch.methods.forwards import supervised_loss
from distillmatch.methods.method import Batch, TaskInfo, Training
from distillmatch.methods.parts import (
    HIGH_RATE,
    KeepsPast,
    distils_in_step,
    local_distillation,
    past_logits_to_distil,
)
from distillmatch.methods.schedule import main_schedule


class Base(KeepsPast):
    """Learn each task by cross entropy alone.

    With `base_distillation`, as the authors' release has it, the past tasks are distilled too.
    """

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the classifier."""
        schedule = main_schedule(self.config, HIGH_RATE)
        distils = self.config.base_distillation and task.past > 0
        asks = distils and not distils_in_step(self.config)

        def loss(batch: Batch) -> Tensor:
            views = self.forward(batch, task)
            supervised = supervised_loss(batch, views)
            if not distils:
                return supervised
            past = past_logits_to_distil(self, batch)
            return supervised + local_distillation(self.config, task, past, views.weak)

        return [
            Training(
                name="classifier",
                network=self.classifier,
                loss=loss,
                schedule=schedule,
                unlabeled=distils,
                strong_labeled=self.learns_strong_labels,
                clip=self.config.base_clip,
                score_images=self.ask_about_labels if asks else None,
                score_unlabeled=self.ask_about_unlabeled if asks else None,
            )
        ]

    def end_task(self, task: TaskInfo) -> None:
        """Keep the classifier to distil from, where that is asked for."""
        if self.config.base_distillation:
            super().end_task(task)
