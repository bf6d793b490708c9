"""PseudoER: experience replay with pseudo-labels of the current task, as later papers have it."""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from distillmatch.config import MethodOptions
from distillmatch.config.base import NotNegative, Share
from distillmatch.losses import consistency_loss
from distillmatch.methods.er import ExperienceReplay
from distillmatch.methods.forward import Batch
from distillmatch.methods.method import TaskInfo
from distillmatch.methods.parts import label_loss


class PseudoLabelReplay(ExperienceReplay):
    """ER, and strong views of unlabeled images are taught what their weak views are certain of.

    Of these only the classes that the task has labels of are considered: others are not expected
    among them.
    """

    class Options(MethodOptions):
        """PseudoER's own options."""

        pseudo_label_weight: NotNegative = Field(1.0, description="weight of the pseudo-labels")
        consistency_threshold: Share = Field(
            0.95, description="confidence among the task's classes from which a label is taken"
        )

    unlabeled: ClassVar[bool] = True
    strong_views: ClassVar[bool] = True

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return the cross entropy of labels, and of the task's pseudo-labels over seen classes."""
        options, logits = self.options, self.forward(batch, task)
        terms = {"labels": label_loss(logits, batch.labels)}
        if len(logits.strong) and task.classes:
            threshold = options.consistency_threshold
            learned = consistency_loss(logits.unlabeled, logits.strong, threshold, task.classes)
            terms["pseudo-labels"] = options.pseudo_label_weight * learned
        return terms
