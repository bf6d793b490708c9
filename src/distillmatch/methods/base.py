"""Base: cross entropy on labeled images, and nothing against forgetting but the coreset."""

from typing import ClassVar

from torch import Tensor

from distillmatch.methods.forward import Batch
from distillmatch.methods.method import Method, TaskInfo
from distillmatch.methods.parts import label_loss


class Base(Method):
    """Learn each task by cross entropy alone; it sees no unlabeled image."""

    unlabeled: ClassVar[bool] = False
    clip: ClassVar[float | None] = 1.0

    def loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        """Return the mean cross entropy of labeled and stored images."""
        return label_loss(self.forward(batch, task), batch.labels)
