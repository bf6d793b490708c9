"""Making networks for methods, which get nothing else of the engine."""

from dataclasses import dataclass

from torch import nn

from distillmatch.config import RunConfig
from distillmatch.engine.device import Placement
from distillmatch.networks import (
    Head,
    InitialWeights,
    PretrainedWeights,
    build_network,
    named_generator,
)


@dataclass(frozen=True)
class NetworkFactory:
    """Builds networks whose first weights are decided by the seed and their name alone.

    With `weights` all backbones start from those instead. It holds no data: a method keeps it, and
    must not find the truth through it.
    """

    network: str
    classes: int
    seed: int
    placement: Placement
    image_size: int = 32
    weights: PretrainedWeights | None = None

    @classmethod
    def of(
        cls, config: RunConfig, classes: int, image_size: int, placement: Placement
    ) -> "NetworkFactory":
        """Return the factory that a configuration asks for, its pretrained weights read."""
        weights = None
        if config.pretrained is not None:
            weights = PretrainedWeights.read(config.pretrained)
        return cls(
            config.network,
            classes,
            config.seed,
            placement,
            image_size,
            weights,
        )

    def __call__(
        self, name: str, head: Head = "linear", initial_weights: InitialWeights = "normal"
    ) -> nn.Module:
        """Return a fresh network, with a linear head or a detector's."""
        generator = named_generator(self.seed, name)
        network: nn.Module = build_network(
            self.network,
            self.classes,
            head,
            generator,
            image_size=self.image_size,
            weights=self.weights,
            initial_weights=initial_weights,
        )
        return self.placement.place(network).eval()
