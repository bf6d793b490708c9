"""DR, distillation and retrospection (Hou et al. 2018), as the paper compares with it."""

from torch import Tensor

from distillmatch.methods.forward import Batch
from distillmatch.methods.method import TaskInfo, Training
from distillmatch.methods.parts import Taught, label_loss


class DistillationAndRetrospection(Taught):
    """Distill the past tasks from the last model, the new task from one trained on it alone."""

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the new task's teacher, then the classifier."""
        outputs = self.teacher_outputs if task.past else None
        main = self.training(task, frozen_labeled=outputs, frozen_unlabeled=outputs)
        return [*self.teacher_training(task), main]

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return cross entropy, distillation per past task (eq. 1), and of the new task."""
        logits = self.forward(batch, task)
        terms = {"labels": label_loss(logits, batch.labels)}
        if task.past:
            terms["distillation"] = self.past_tasks(logits, batch, task)
        if task.past and task.new:
            terms["new task"] = self.new_task(logits, batch, task)
        return terms
