"""DeConf, decomposed confidence (Hsu et al., 2020): the head and network of the detector."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from distillmatch.networks.initial_weights import (
    InitialWeights,
    draw_normal,
    draw_uniform,
    initialize,
)
from distillmatch.networks.network import ClassHead, Network
from distillmatch.networks.normalization import BatchNorm

Similarity = Literal["cosine", "scaled-cosine"]


class DeconfHead(ClassHead):
    """A head whose logits are f_k = h_k / g, the dividend from the classes, the divisor not.

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
        draw = draw_normal if self.initial_weights == "normal" else draw_uniform
        draw(rows, generator)

    def forward(self, features: Tensor) -> Tensor:
        """Return f = h / g, the logits the network is trained on."""
        similarities, divisor = self.parts(features)
        return similarities / divisor

    def parts(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return h, a column for each class slot, and g, a single column.

        The head leaves mixed precision: cosines rounded to eight bits tie, and a threshold among
        ties does not give the rate that was asked for.
        """
        with torch.autocast(features.device.type, enabled=False):
            features = features.to(self.classes.weight.dtype)
            divisor = torch.sigmoid(self.divisor_norm(self.divisor(features)))
            return self._similarities(features), divisor

    def _similarities(self, features: Tensor) -> Tensor:
        weights = self.classes.weight
        cosine = functional.linear(functional.normalize(features), functional.normalize(weights))
        if self.similarity == "scaled-cosine":
            return cosine * torch.exp(self.scale_norm(self.scale(features)))
        return cosine


class Detector(Network):
    """A network with a DeConf head: φ, which scores how familiar an image is."""

    head: DeconfHead

    def __init__(self, backbone: nn.Module, head: DeconfHead) -> None:
        super().__init__(backbone, head)

    def parts(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return h, a column for each class slot, and g, a single column."""
        return self.head.parts(self.features(images))

    def similarities(self, images: Tensor) -> Tensor:
        """Return h, from which the score max_k h_k over the seen classes is taken."""
        return self.parts(images)[0]
