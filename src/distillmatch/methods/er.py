"""ER, experience replay, as later papers on this setting compare with it."""

from typing import ClassVar

from torch import Tensor

from distillmatch.config import AS_WRITTEN, Recipe
from distillmatch.methods.forward import Batch
from distillmatch.methods.method import Method, TaskInfo, Training
from distillmatch.methods.parts import label_loss


class ExperienceReplay(Method):
    """Cross entropy on batches half new and half stored; it sees no unlabeled image."""

    unlabeled: ClassVar[bool] = False
    fixed_recipe: ClassVar[Recipe | None] = AS_WRITTEN

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the classifier on batches half of which are stored images, once there are some."""
        return [self.training(task, stored_share=0.5)]

    def loss(self, batch: Batch, task: TaskInfo) -> Tensor | dict[str, Tensor]:
        """Return the mean cross entropy of new and stored images."""
        return label_loss(self.forward(batch, task), batch.labels)
