"""ER, experience replay, as later papers on this setting compare with it."""

from typing import ClassVar

from torch import Tensor

from distillmatch.config import AS_WRITTEN, Recipe, RunConfig
from distillmatch.methods.forward import Batch
from distillmatch.methods.method import Method, TaskInfo, Training
from distillmatch.methods.parts import label_loss

STORED_SHARE = 0.5
"""Half of each batch is stored images, once there are some."""


class ExperienceReplay(Method):
    """Cross entropy on batches half new and half stored; it sees no unlabeled image."""

    unlabeled: ClassVar[bool] = False

    @classmethod
    def recipe_of(cls, config: RunConfig) -> Recipe:
        """Return the initial weights and whole batches of later papers, whatever the recipe."""
        return AS_WRITTEN

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the classifier."""
        return [self.training(task, stored_share=STORED_SHARE)]

    def loss(self, batch: Batch, task: TaskInfo) -> Tensor | dict[str, Tensor]:
        """Return the mean cross entropy of new and stored images."""
        return label_loss(self.forward(batch, task), batch.labels)
