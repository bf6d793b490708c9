"""Methods of a user's own, as a learner may be given them."""

from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.methods import (
    Batch,
    Method,
    NetworkBuilder,
    TaskInfo,
    Training,
    main_schedule,
)


class Weighted(Method):
    """Cross entropy, times a weight."""

    def trainings(self, task: TaskInfo) -> list[Training]:
        weight = self.config.options.get("weight", 1)

        def loss(batch: Batch) -> Tensor:
            logits = self.classifier(batch.images)[:, : task.seen]
            return nn.functional.cross_entropy(logits, batch.labels) * float(weight)

        schedule = main_schedule(self.config, 0.1)
        return [Training("classifier", self.classifier, loss, schedule, unlabeled=False)]


class Stubborn(Weighted):
    """One with a network that has no head to give more classes."""

    def __init__(self, config: RunConfig, build: NetworkBuilder) -> None:
        super().__init__(config, build)
        self.networks["own"] = nn.Linear(2, 2)
