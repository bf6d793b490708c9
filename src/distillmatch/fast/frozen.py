"""A wide residual network in evaluation, written out: forward, and back to its images.

Normalization by running statistics is a factor and a summand of each channel, so a convolution can
do it, the ReLU and the residual sum to what it is about to store; autograd, which sees one layer at
a time, cannot. On the way back it is the same, and of activated maps no more is kept than which of
their numbers are above zero. Parameters get no gradients. `Walk` knows the network and no device:
what is done to maps are `Operations`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from distillmatch.fast import running_statistics
from distillmatch.fast.running_statistics import Activated, Coefficients

if TYPE_CHECKING:
    from distillmatch.networks.normalization import BatchNorm
    from distillmatch.networks.wide_resnet import WideResNet


class Layer(NamedTuple):
    """A convolution."""

    weight: Tensor
    stride: int


class Block(NamedTuple):
    """The convolutions of a residual block."""

    first: Layer
    second: Layer
    shortcut: Layer | None


class Operations(Protocol):
    """What is done to maps. What signs are like is theirs alone to know."""

    def weight(self, convolution: nn.Conv2d) -> Tensor:
        """Return a convolution's weights."""

    def coefficients(self, norms: Sequence["BatchNorm"]) -> Sequence[Coefficients]:
        """Return what each normalization multiplies by and adds."""

    def activate(
        self,
        maps: Tensor,
        layer: Layer,
        by: Coefficients,
        shortcut: Tensor | None = None,
        *,
        keeps_total: bool = False,
        keeps_signs: bool = False,
    ) -> Activated:
        """Convolve, add the shortcut, normalize and activate."""

    def convolve(self, maps: Tensor, layer: Layer) -> Tensor:
        """Convolve by a shortcut's single tap."""

    def take_back_mean(self, given: Tensor, by: Coefficients, signs: Tensor) -> Tensor:
        """Take the gradient of the mean to what was normalized before it."""

    def take_back(
        self,
        given: Tensor,
        layer: Layer,
        by: Coefficients,
        signs: Tensor,
        *,
        of_total: Tensor | None = None,
        shortcut: tuple[Tensor, Layer] | None = None,
    ) -> Tensor:
        """Take the gradient of a convolution's output to what was normalized before its input.

        What is normalized may be a shortcut with a gradient `of_total` of its own; or a `shortcut`
        with a gradient and a layer may begin at the convolution's input.
        """

    def take_back_to_images(self, given: Tensor, layer: Layer) -> Tensor:
        """Take the gradient of the first convolution's output to its input."""


class Walk:
    """The way of images through a backbone, and of a gradient back."""

    def __init__(self, backbone: "WideResNet", operations: Operations) -> None:
        def layer(convolution: nn.Conv2d) -> Layer:
            return Layer(operations.weight(convolution), convolution.stride[0])

        blocks: Any = backbone.blocks
        self.operations = operations
        self.first = layer(backbone.first)
        self.blocks = [
            Block(
                layer(block.conv1),
                layer(block.conv2),
                None if block.shortcut is None else layer(block.shortcut),
            )
            for block in blocks
        ]
        self.by = operations.coefficients(backbone.norms)

    def forward(self, images: Tensor, *, keeps_signs: bool) -> tuple[Tensor, list[Tensor]]:
        """Return the features, and the signs after each normalization if they are to be kept."""
        operations, signs = self.operations, []

        def noted(made: Activated) -> Activated:
            if made.signs is not None:
                signs.append(made.signs)
            return made

        made = noted(
            operations.activate(
                images,
                self.first,
                self.by[0],
                keeps_total=self._is_next_shortcut(0),
                keeps_signs=keeps_signs,
            )
        )
        for number, block in enumerate(self.blocks):
            by_inner, by_outer = self.by[2 * number + 1], self.by[2 * number + 2]
            shortcut = made.total
            if block.shortcut is not None:
                shortcut = operations.convolve(made.maps, block.shortcut)
            inner = noted(
                operations.activate(made.maps, block.first, by_inner, keeps_signs=keeps_signs)
            )
            made = noted(
                operations.activate(
                    inner.maps,
                    block.second,
                    by_outer,
                    shortcut,
                    keeps_total=self._is_next_shortcut(number + 1),
                    keeps_signs=keeps_signs,
                )
            )
        return made.maps.mean(dim=(2, 3)), signs

    def back(self, of_features: Tensor, signs: Sequence[Tensor]) -> Tensor:
        """Return the gradient of the images, from that of the features."""
        operations = self.operations
        given = operations.take_back_mean(of_features, self.by[-1], signs[-1])
        for number, block in reversed(list(enumerate(self.blocks))):
            outer, inner = 2 * number, 2 * number + 1
            of_inner = operations.take_back(given, block.second, self.by[inner], signs[inner])
            before = block.first, self.by[outer], signs[outer]
            if block.shortcut is None:
                given = operations.take_back(of_inner, *before, of_total=given)
            else:
                given = operations.take_back(of_inner, *before, shortcut=(given, block.shortcut))
        return operations.take_back_to_images(given, self.first)

    def _is_next_shortcut(self, number: int) -> bool:
        """Tell whether what is normalized before a block is the block's shortcut."""
        return number < len(self.blocks) and self.blocks[number].shortcut is None


class _Features(torch.autograd.Function):
    """The walk as a function that autograd knows."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, walk: Walk) -> Tensor:
        made, signs = walk.forward(images, keeps_signs=True)
        ctx.save_for_backward(*signs)
        ctx.walk = walk
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.walk.back(gradients[0], ctx.saved_tensors), None


def takes(backbone: "WideResNet", images: Tensor) -> bool:
    """Tell whether `features` can do, what the backbone does."""
    norms = backbone.norms
    return (
        images.is_cuda
        and images.shape[0] > 0
        and not any(norm.training for norm in norms)
        and not _learns(backbone)
        and running_statistics.takes(norms)
    )


def _learns(backbone: "WideResNet") -> bool:
    return torch.is_grad_enabled() and any(one.requires_grad for one in backbone.parameters())


def features(backbone: "WideResNet", images: Tensor, weights: Mapping[nn.Conv2d, Tensor]) -> Tensor:
    """Return the features of images, which may want gradients."""
    from distillmatch.fast.frozen_on_device import (  # noqa: PLC0415  it needs `Layer`
        OnDevice,
    )

    walk = Walk(backbone, OnDevice(weights))
    maps = images.to(torch.bfloat16, memory_format=torch.channels_last)
    if torch.is_grad_enabled() and images.requires_grad:
        made: Tensor = _Features.apply(maps, walk)  # type: ignore[no-untyped-call]
        return made
    return walk.forward(maps, keeps_signs=False)[0]
