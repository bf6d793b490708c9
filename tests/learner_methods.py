"""Methods of a user's own, as a learner may be given them."""

from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from distillmatch.config import MethodOptions, RunConfig
from distillmatch.methods import Batch, Method, NetworkBuilder, TaskInfo


class Weighted(Method):
    """Cross entropy, times a weight."""

    class Options(MethodOptions):
        """Its own options."""

        weight: float = Field(1.0, description="what the loss is multiplied by")

    unlabeled: ClassVar[bool] = False

    def loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        logits = self.forward(batch, task).labeled
        return nn.functional.cross_entropy(logits, batch.labels) * float(self.options.weight)


class Stubborn(Weighted):
    """One with a network that has no head to give more classes."""

    def __init__(self, config: RunConfig, build: NetworkBuilder) -> None:
        super().__init__(config, build)
        self.networks["own"] = nn.Linear(2, 2)
