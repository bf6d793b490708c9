"""A wide residual network in evaluation: its features, and their gradient of the images.

Parameters get no gradients. Of activated maps only their signs are kept.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from distillmatch.fast import running_norm
from distillmatch.fast.convolution import convolution_backward
from distillmatch.fast.running_norm import (
    convolution_norm_relu,
    convolution_norm_relu_backward,
    mean_relu_backward,
    norm_coefficients,
)
from distillmatch.fast.walk import Layers, Stage, Walk, Weights


class FrozenWalk(Walk):
    """The walk by running statistics."""

    def __init__(self, layers: Layers, weights: Weights, *, keeps_signs: bool) -> None:
        super().__init__(layers, weights)
        self.keeps_signs = keeps_signs
        self.signs: Sequence[Tensor] = []
        norms = layers.norms
        scales, shifts = norm_coefficients(
            [norm.weight for norm in norms],
            [norm.bias for norm in norms],
            [norm.running_mean for norm in norms],
            [norm.running_var for norm in norms],
            [norm.epsilon for norm in norms],
        )
        counts = [len(norm.running_mean) for norm in norms]
        self.scales, self.shifts = scales.split(counts), shifts.split(counts)

    def forward(self, images: Tensor) -> Tensor:
        """Keep the signs after each stage in `signs`, too, if they are to be kept."""
        self.signs, self.number = [], 0
        return super().forward(images)

    def stage(
        self, stage: Stage, maps: Tensor, shortcut: Tensor | None, keeps_total: bool
    ) -> tuple[Tensor, Tensor]:
        """Normalize by running statistics."""
        by = self.scales[self.number], self.shifts[self.number]
        self.number += 1
        activated, total, signs = convolution_norm_relu(
            maps, *self.taps(stage.convolution), *by, shortcut, keeps_total, self.keeps_signs
        )
        if self.keeps_signs:
            self.signs = [*self.signs, signs]
        return total, activated

    def mean_backward(self, gradient: Tensor) -> Tensor:
        """Let all positions of an image share the one gradient."""
        made: Tensor = mean_relu_backward(gradient, self.scales[-1], self.signs[-1])
        return made

    def stage_backward(
        self, number: int, gradient: Tensor, beside: Tensor | None, shortcut: nn.Conv2d | None
    ) -> Tensor:
        """Go back through all of it by one operator."""
        taps = self.taps(self.stages[number].convolution)
        before = self.scales[number - 1], self.signs[number - 1]
        given = gradient, *taps, *before
        made: Tensor
        if shortcut is None:
            made = convolution_norm_relu_backward(*given, beside, None, None, 1)
        else:
            made = convolution_norm_relu_backward(*given, None, beside, *self.taps(shortcut))
        return made

    def first_backward(self, gradient: Tensor, to_images: bool) -> Tensor | None:
        """Return the gradient of the images."""
        taps = self.taps(self.layers.first.convolution)
        of_images: Tensor = convolution_backward(gradient, *taps, *gradient.shape[2:])
        return of_images


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, walk: FrozenWalk) -> Tensor:
        made = walk.forward(images)
        ctx.save_for_backward(*walk.signs)
        walk.signs = []
        ctx.walk = walk
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.walk.signs = ctx.saved_tensors
        of_images = ctx.walk.backward(gradient, to_images=True)
        ctx.walk.signs = []
        return of_images, None


def features(layers: Layers, images: Tensor, weights: Weights) -> Tensor:
    """Return the features of channels-last images, which may want gradients."""
    learns = torch.is_grad_enabled() and images.requires_grad
    walk = FrozenWalk(layers, weights, keeps_signs=learns)
    if learns:
        made: Tensor = _Features.apply(images, walk)  # type: ignore[no-untyped-call]
        return made
    return walk.forward(images)


def takes(layers: Layers, images: Tensor) -> bool:
    """Return whether the kernels take layers in evaluation, whose parameters do not learn."""
    norms = layers.norms
    if any(norm.training for norm in norms) or len(images) == 0:
        return False
    if torch.is_grad_enabled() and any(
        one.requires_grad for layer in (*layers.convolutions, *norms) for one in layer.parameters()
    ):
        return False
    return running_norm.takes({len(norm.running_mean) for norm in norms}, images.device)
