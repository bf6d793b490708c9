"""Draw the initial weights of layers and of new class slots."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from distillmatch.networks.normalization import BatchNorm
from distillmatch.randomness import random_integers

InitialWeights = Literal["uniform", "normal"]


def named_generator(seed: int, *name: str | int) -> torch.Generator:
    """Return the generator of a network's first weights, decided by the seed and its name alone."""
    number = random_integers(seed, "weights", *name, count=1)[0] >> np.uint64(1)
    return torch.Generator().manual_seed(int(number))


def initialize(
    network: nn.Module,
    generator: torch.Generator | None = None,
    initial_weights: InitialWeights = "normal",
) -> None:
    """Draw the weights of all convolutions and linear layers, and the biases of linear layers.

    - `normal`: convolutions normal with variance 2 / (channels out · kernel area), linear layers
      uniform within ± 1 / √(features in), their biases zero, normalization the identity;
    - `uniform`: everything uniform within ± 1 / √(inputs of one output), and the weights of
      normalization uniform between 0 and 1, as torch initialized layers up to version 1.1, which
      the authors' release was made with.

    Without a `generator` the numbers come from torch's global one.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            if initial_weights == "normal":
                nn.init.kaiming_normal_(
                    layer.weight, mode="fan_out", nonlinearity="relu", generator=generator
                )
            else:
                draw_uniform(layer.weight, generator)
        elif isinstance(layer, nn.Linear):
            draw_uniform(layer.weight, generator)
            if layer.bias is not None:
                draw_bias(layer.bias, layer.in_features, generator, initial_weights)
        elif isinstance(layer, BatchNorm) and initial_weights == "uniform":
            nn.init.uniform_(layer.weight, generator=generator)


def draw_uniform(weight: Tensor, generator: torch.Generator | None) -> None:
    """Draw the weights of a layer within ± 1 / √(inputs of one output)."""
    bound = weight[0].numel() ** -0.5
    nn.init.uniform_(weight, -bound, bound, generator=generator)


def draw_bias(
    bias: Tensor, features: int, generator: torch.Generator | None, initial_weights: InitialWeights
) -> None:
    """Set the bias of a linear layer to zero, or draw it within ± 1 / √(features in)."""
    if initial_weights == "normal":
        nn.init.zeros_(bias)
    else:
        nn.init.uniform_(bias, -(features**-0.5), features**-0.5, generator=generator)


def draw_normal(weight: Tensor, generator: torch.Generator | None) -> None:
    """Draw the weights of a linear layer with variance 2 / (features in)."""
    nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
