"""E2E, end-to-end incremental learning (Castro et al. 2018), as the paper compares with it."""

from torch import Tensor

from distillmatch.methods.forward import Batch
from distillmatch.methods.method import TaskInfo, Training
from distillmatch.methods.parts import Baseline, label_loss


class EndToEnd(Baseline):
    """Cross entropy and distillation per past task, then balanced fine-tuning of all weights."""

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the classifier, then fine-tune it where there is a coreset."""
        main = self.main_training(task, before=self.balance_without_coreset)
        whole = {"parameters": "all", "unlabeled": task.past > 0}
        return [main, *self.fine_tuning(task, self.labels, self.balance, **whole)]

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return cross entropy, and distillation per past task (eq. 1)."""
        logits = self.forward(batch, task)
        terms = {"labels": label_loss(logits, batch.labels, self.weights)}
        if task.past:
            terms["distillation"] = self.past_tasks(logits, batch, task)
        return terms

    def labels(self, batch: Batch, task: TaskInfo) -> Tensor:
        """Return the cross entropy; unlabeled images take part in the batch statistics alone."""
        return label_loss(self.forward(batch, task), batch.labels, self.weights)
