"""The offline bound: what could be had if every task's labelled images were there at once."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from distillmatch.losses import consistency_loss
from distillmatch.methods.forwards import forward_views, supervised_loss
from distillmatch.methods.method import Batch, Method, TaskInfo, Training
from distillmatch.methods.parts import HIGH_RATE
from distillmatch.methods.schedule import main_schedule


class Offline(Method):
    """UB of the paper: a fresh network for each stage, on all labelled images so far."""

    memory: ClassVar[Literal["coreset", "everything"]] = "everything"
    independent_tasks: ClassVar[bool] = True

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train a fresh classifier."""
        schedule = main_schedule(self.config, HIGH_RATE)
        network = self.start_afresh("classifier", task)

        return [
            Training(
                name="classifier",
                network=network,
                loss=lambda batch: supervised_loss(batch, forward_views(network, batch, task.seen)),
                schedule=schedule,
                unlabeled=False,
                strong_labeled=self.learns_strong_labels,
                clip=self.config.base_clip,
            )
        ]


class OfflineWithUnlabeled(Offline):
    """A bound that is not the paper's: FixMatch, with all unlabelled images so far too."""

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train a fresh classifier with consistency on strong views."""
        schedule = main_schedule(self.config, HIGH_RATE)
        network = self.start_afresh("classifier", task)

        def loss(batch: Batch) -> Tensor:
            views = forward_views(network, batch, task.seen)
            supervised = supervised_loss(batch, views)
            if views.strong is None:
                return supervised
            threshold = self.config.consistency_threshold
            consistent = consistency_loss(views.unlabeled, views.strong, threshold)
            return torch.add(supervised, consistent, alpha=self.config.consistency_weight)

        return [
            Training(
                name="classifier",
                network=network,
                loss=loss,
                schedule=schedule,
                strong=True,
                strong_labeled=self.learns_strong_labels,
                clip=self.config.clip,
            )
        ]
