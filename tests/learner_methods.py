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


class TinyBackbone(nn.Module):
    """Sixteen features of an image, from few weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers(images)
        return maps.mean(dim=(2, 3))


class NotedBackbone(TinyBackbone):
    """One with timm's note on the images that it takes."""

    pretrained_cfg: ClassVar = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
