"""A network: a backbone that turns images into features, and a head that turns them into logits."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from distillmatch.errors import ConfigError
from distillmatch.networks.initial_weights import (
    InitialWeights,
    draw_bias,
    draw_uniform,
    initialize,
)


class ClassHead(nn.Module, ABC):
    """A head: features in, one logit a class slot out, with room for more classes."""

    initial_weights: InitialWeights

    @property
    @abstractmethod
    def slots(self) -> nn.Linear:
        """The layer that has a row of weights for each class."""

    def draw(self, rows: Tensor, generator: torch.Generator | None) -> None:
        """Draw the initial weights of classes."""
        draw_uniform(rows, generator)

    def grow(self, classes: int, generator: torch.Generator | None = None) -> None:
        """Grow to so many class slots: old rows stay, new ones start as in a fresh layer."""
        layer = self.slots
        added = classes - layer.out_features
        if added < 0:
            raise ConfigError(
                f"a network of {layer.out_features} classes cannot be made one of {classes}"
            )
        if added == 0:
            return
        # Drawn in float32 on the CPU, so that they are the same wherever the network is.
        rows, biases = torch.empty(added, layer.in_features), torch.empty(added)
        self.draw(rows, generator)
        layer.weight = _longer(layer.weight, rows)
        if layer.bias is not None:
            draw_bias(biases, layer.in_features, generator, self.initial_weights)
            layer.bias = _longer(layer.bias, biases)
        layer.out_features = classes


class LinearHead(ClassHead, nn.Linear):
    """One linear layer with a bias."""

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


class Network(nn.Module):
    """A backbone, which maps images (N, 3, H, W) to features (N, F), with its head.

    The head has a slot for each class, in the order in which classes are learned; the caller cuts
    the outputs to the classes seen so far.
    """

    head: ClassHead

    def __init__(self, backbone: nn.Module, head: ClassHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    @property
    def feature_count(self) -> int:
        """How many features an image has."""
        return self.head.slots.in_features

    @property
    def class_count(self) -> int:
        """How many class slots the head has."""
        return self.head.slots.out_features

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
        """Grow to so many class slots: learned ones stay as they are, new ones start afresh.

        The head's parameters are replaced, so an optimizer must be made anew.
        """
        self.head.grow(classes, generator)


def _longer(parameter: Tensor, rows: Tensor) -> nn.Parameter:
    values = torch.cat([parameter.detach(), rows.to(parameter)])
    return nn.Parameter(values, requires_grad=parameter.requires_grad)
