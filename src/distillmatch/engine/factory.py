"""Making networks for methods, which get nothing else of the engine."""

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import nn

from distillmatch.config import RunConfig
from distillmatch.config.run import InitialWeights
from distillmatch.engine.device import Placement
from distillmatch.networks import Head, PretrainedWeights, build_network
from distillmatch.randomness import random_integers


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
    initial_weights: InitialWeights = "normal"

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
            config.initial_weights,
        )

    def __call__(self, name: str, similarity: str | None = None) -> nn.Module:
        """Return a fresh network; with `similarity`, one whose head is a detector's."""
        generator = torch.Generator()
        number = random_integers(self.seed, "weights", name, count=1)[0] >> np.uint64(1)
        generator.manual_seed(int(number))
        head = cast(Head, similarity or "linear")
        network: nn.Module = build_network(
            self.network,
            self.classes,
            head,
            generator,
            image_size=self.image_size,
            weights=self.weights,
            initial_weights=self.initial_weights,
        )
        return self.placement.place(network).eval()
