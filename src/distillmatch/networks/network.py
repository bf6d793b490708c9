"""A network: a backbone that turns images into features, and a head that turns them into logits.

The detector's head is DeConf, decomposed confidence (Hsu et al., 2020).
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from distillmatch.errors import ConfigError
from distillmatch.networks.initial_weights import (
    InitialWeights,
    draw_bias,
    draw_normal,
    draw_uniform,
    initialize,
)
from distillmatch.networks.normalization import BatchNorm

Similarity = Literal["cosine", "scaled-cosine"]


class LinearHead(nn.Linear):
    """A linear layer with a bias and one logit for each class slot."""

    def __init__(
        self,
        features: int,
        classes: int,
        generator: torch.Generator | None = None,
        initial_weights: InitialWeights = "normal",
    ) -> None:
        super().__init__(features, classes)
        self.initial_weights = initial_weights
        initialize(self, generator, initial_weights)

    @property
    def slots(self) -> nn.Linear:
        """The layer that has a row of weights for each class."""
        return self

    def draw(self, rows: Tensor, generator: torch.Generator | None) -> None:
        """Draw the initial weights of classes."""
        draw_uniform(rows, generator)


class DeconfHead(nn.Module):
    """A head with logits f_k = h_k / g: the dividend depends on the class, the divisor does not.

    With feature z and class weight w_k, `similarity` names h_k:

    - `cosine`: w_k·z / (‖w_k‖ ‖z‖), the specified one;
    - `scaled-cosine`: the cosine times exp(BN(v·z)), as the authors' release has it.

    The divisor is g = sigmoid(BN(u·z + c)), one number for each image.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        similarity: Similarity,
        generator: torch.Generator | None = None,
        initial_weights: InitialWeights = "normal",
    ) -> None:
        super().__init__()
        self.similarity = similarity
        self.initial_weights = initial_weights
        self.classes = nn.Linear(features, classes, bias=False)
        self.divisor = nn.Linear(features, 1)
        self.divisor_norm = BatchNorm(1)
        if similarity == "scaled-cosine":
            self.scale = nn.Linear(features, 1, bias=False)
            self.scale_norm = BatchNorm(1)
        initialize(self, generator, initial_weights)
        self.draw(self.classes.weight, generator)

    @property
    def slots(self) -> nn.Linear:
        """The layer that has a row of weights for each class."""
        return self.classes

    def draw(self, rows: Tensor, generator: torch.Generator | None) -> None:
        """Draw the initial weights of classes.

        A cosine learns the slower the longer its weight, so they start as long as those of
        DeConf's authors, or with `uniform` as those of the paper's.
        """
        (draw_normal if self.initial_weights == "normal" else draw_uniform)(rows, generator)

    def forward(self, features: Tensor) -> Tensor:
        """Return f = h / g, the logits the network is trained on."""
        similarities, divisor = self.parts(features)
        return similarities / divisor

    def parts(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return h, a column for each class slot, and g, a single column.

        The head leaves mixed precision: cosines rounded to eight bits tie, and a threshold among
        ties does not give the rate that was asked for.
        """
        weights = self.classes.weight
        with torch.autocast(features.device.type, enabled=False):
            features = features.to(weights.dtype)
            divisor = torch.sigmoid(self.divisor_norm(self.divisor(features)))
            h = functional.linear(functional.normalize(features), functional.normalize(weights))
            if self.similarity == "scaled-cosine":
                h = h * torch.exp(self.scale_norm(self.scale(features)))
            return h, divisor


class Network(nn.Module):
    """A backbone, which maps images (N, 3, H, W) to features (N, F), with its head.

    The head has a slot for each class, in the order in which classes are learned; the caller cuts
    the outputs to the classes seen so far.
    """

    def __init__(self, backbone: nn.Module, head: LinearHead | DeconfHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    @property
    def feature_count(self) -> int:
        """How many features an image has."""
        return self.head.slots.in_features

    def features(self, images: Tensor) -> Tensor:
        """Return one vector of `feature_count` numbers for each image."""
        features: Tensor = self.backbone(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of every class slot for each image."""
        return self.classify(self.features(images))

    def classify(self, features: Tensor) -> Tensor:
        """Return the logits for features.

        The head leaves mixed precision: losses and thresholds want logits in float32.
        """
        with torch.autocast(features.device.type, enabled=False):
            logits: Tensor = self.head(features.to(self.head.slots.weight.dtype))
        return logits

    def grow(self, classes: int, generator: torch.Generator | None = None) -> None:
        """Grow to this many class slots; learned slots stay as they are, new ones are drawn.

        The head's parameters are replaced, so an optimizer must be made anew.
        """
        layer = self.head.slots
        added = classes - layer.out_features
        if added < 0:
            raise ConfigError(
                f"a network of {layer.out_features} classes cannot be made one of {classes}"
            )
        if added == 0:
            return
        # Drawn in float32 on the CPU, so that they are the same wherever the network is.
        rows, biases = torch.empty(added, layer.in_features), torch.empty(added)
        self.head.draw(rows, generator)
        layer.weight = _longer(layer.weight, rows)
        if layer.bias is not None:
            draw_bias(biases, layer.in_features, generator, self.head.initial_weights)
            layer.bias = _longer(layer.bias, biases)
        layer.out_features = classes


class Detector(Network):
    """A network with a DeConf head: φ, which scores how familiar an image is."""

    head: DeconfHead

    def parts(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return h, a column for each class slot, and g, a single column."""
        return self.head.parts(self.features(images))

    def similarities(self, images: Tensor) -> Tensor:
        """Return h, from which the score max_k h_k over the seen classes is taken."""
        return self.parts(images)[0]


def _longer(parameter: Tensor, rows: Tensor) -> nn.Parameter:
    values = torch.cat([parameter.detach(), rows.to(parameter)])
    return nn.Parameter(values, requires_grad=parameter.requires_grad)
