"""The upper bound: what could be had if every task's labeled images were there at once."""

from typing import ClassVar, Literal

from torch import Tensor

from distillmatch.losses import consistency_loss
from distillmatch.methods.forward import Batch
from distillmatch.methods.method import Method, TaskInfo, Training
from distillmatch.methods.parts import label_loss


class Offline(Method):
    """UB of the paper: a fresh network for each stage, on all labeled images so far."""

    unlabeled: ClassVar[bool] = False
    clip: ClassVar[float | None] = 1.0
    memory: ClassVar[Literal["coreset", "everything"]] = "everything"
    independent_tasks: ClassVar[bool] = True

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train a fresh classifier."""
        self.start_afresh("classifier", task)
        return [self.training(task)]

    def loss(self, batch: Batch, task: TaskInfo) -> Tensor | dict[str, Tensor]:
        """Return the mean cross entropy."""
        return label_loss(self.forward(batch, task), batch.labels)


class OfflineWithUnlabeled(Offline):
    """An upper bound that is not the paper's: FixMatch, with all unlabeled images so far too."""

    unlabeled: ClassVar[bool] = True
    strong_views: ClassVar[bool] = True

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return cross entropy, and consistency of strong with weak views (eq. 4)."""
        logits = self.forward(batch, task)
        threshold = self.recipe.consistency_threshold
        return {
            "labels": label_loss(logits, batch.labels),
            "consistency": consistency_loss(logits.unlabeled, logits.strong, threshold),
        }
