"""The order in which a batch passes through a wide residual network, and its gradients back.

Autograd would go layer by layer. Written out, a convolution and the normalization after it are one
kernel where there is one, gradients that meet are added where they are made, and what is no longer
needed is freed on the way back.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from distillmatch.fast.convolution import convolve_1x1
from distillmatch.networks.normalization import BatchNorm

if TYPE_CHECKING:
    from distillmatch.networks.wide_resnet import WideResNet


class Stage(NamedTuple):
    """A convolution, and the normalization with ReLU of what it gives."""

    convolution: nn.Conv2d
    norm: BatchNorm


class Residual(NamedTuple):
    """Two stages; a shortcut is added before the normalization of the second.

    That is the first normalization of the next block, or the last of the network.
    """

    inner: Stage
    outer: Stage
    shortcut: nn.Conv2d | None


class Layers(NamedTuple):
    """The layers of a wide residual network, in their order."""

    first: Stage
    blocks: list[Residual]

    @classmethod
    def of(cls, backbone: "WideResNet") -> "Layers":
        """List the layers that a backbone has now."""
        blocks = list(backbone.blocks)
        norms = [block.norm1 for block in blocks] + [backbone.last_norm]
        residuals = [
            Residual(Stage(block.conv1, block.norm2), Stage(block.conv2, norm), block.shortcut)
            for block, norm in zip(blocks, norms[1:], strict=True)
        ]
        return cls(Stage(backbone.first, norms[0]), residuals)

    @property
    def stages(self) -> list[Stage]:
        """All stages."""
        return [self.first, *(stage for block in self.blocks for stage in block[:2])]

    @property
    def norms(self) -> list[BatchNorm]:
        """All normalizations."""
        return [stage.norm for stage in self.stages]

    @property
    def convolutions(self) -> list[nn.Conv2d]:
        """All convolutions."""
        shortcuts = [block.shortcut for block in self.blocks if block.shortcut is not None]
        return [stage.convolution for stage in self.stages] + shortcuts


Weights = Mapping[nn.Conv2d, Tensor]
"""The weights of the convolutions, in the precision of the maps."""


class Walk(ABC):
    """One batch's way through the layers."""

    def __init__(self, layers: Layers, weights: Weights) -> None:
        self.layers, self.weights = layers, weights
        self.stages = layers.stages

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of channels-last images."""
        blocks = self.layers.blocks
        total, activated = self.stage(self.layers.first, images, None, _is_identity(blocks, 0))
        for number, block in enumerate(blocks):
            shortcut = total
            if block.shortcut is not None:
                shortcut = convolve_1x1(activated, *self.taps(block.shortcut))
            _, inner = self.stage(block.inner, activated, None, False)
            keeps_total = _is_identity(blocks, number + 1)
            total, activated = self.stage(block.outer, inner, shortcut, keeps_total)
        return activated.mean(dim=(2, 3))

    def backward(self, gradient: Tensor, to_images: bool) -> Tensor | None:
        """Take the gradient of the features to all parameters, and return that of the images."""
        number = len(self.stages) - 1
        given = self.mean_backward(gradient)
        for block in reversed(self.layers.blocks):
            inner = self.stage_backward(number, given, None, None)
            if block.shortcut is None:
                given = self.stage_backward(number - 1, inner, given, None)
            else:
                given = self.stage_backward(number - 1, inner, given, block.shortcut)
            number -= 2
        return self.first_backward(given, to_images)

    def taps(self, convolution: nn.Conv2d) -> tuple[Tensor, int]:
        """Return the weight of a convolution and its stride."""
        return self.weights[convolution], convolution.stride[0]

    @abstractmethod
    def stage(
        self, stage: Stage, maps: Tensor, shortcut: Tensor | None, keeps_total: bool
    ) -> tuple[Tensor, Tensor]:
        """Convolve, add the shortcut, normalize; return what was normalized, and the ReLU.

        What was normalized is asked for only where it is the next shortcut.
        """

    @abstractmethod
    def mean_backward(self, gradient: Tensor) -> Tensor:
        """Return the gradient of what the last stage normalized, from that of the features."""

    @abstractmethod
    def stage_backward(
        self, number: int, gradient: Tensor, beside: Tensor | None, shortcut: nn.Conv2d | None
    ) -> Tensor:
        """Take the gradient of a stage's convolution to what the stage before normalized.

        `beside` is the gradient of a shortcut that begins there: of what was normalized itself, or
        of the output of a convolution `shortcut` that read the same maps as the stage.
        """

    @abstractmethod
    def first_backward(self, gradient: Tensor, to_images: bool) -> Tensor | None:
        """Take the gradient of the first convolution's output to its input."""


def _is_identity(blocks: list[Residual], number: int) -> bool:
    """Return whether a block's shortcut is what was normalized before it."""
    return number < len(blocks) and blocks[number].shortcut is None
