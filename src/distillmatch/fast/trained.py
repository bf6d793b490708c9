"""A wide residual network in training, forward and backward as one function for autograd."""

from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from distillmatch.fast import batch_norm
from distillmatch.fast.batch_norm import batch_norm_relu, batch_norm_relu_backward, counters_of
from distillmatch.fast.convolution import (
    convolution,
    convolution_backward,
    convolve_1x1_backward,
)
from distillmatch.fast.walk import Layers, Stage, Walk, Weights
from distillmatch.fast.weight_gradient import WeightGradients
from distillmatch.networks.normalization import StatisticsGroups


class Passed(NamedTuple):
    """A stage that was passed: what its convolution read, and what its normalization did."""

    stage: Stage
    read: Tensor
    total: Tensor
    coefficients: Tensor


class TrainedWalk(Walk):
    """The walk by batch statistics. What it keeps is freed on the way back."""

    def __init__(
        self, layers: Layers, weights: Weights, groups: StatisticsGroups, *, keeps: bool
    ) -> None:
        super().__init__(layers, weights)
        self.groups, self.keeps = groups, keeps
        self.passed: list[Passed] = []
        self.wanted: AbstractSet[Tensor] = frozenset()
        self.gradients: dict[Tensor, Tensor] = {}
        self.weight_gradients: WeightGradients | None = None

    def stage(
        self, stage: Stage, maps: Tensor, shortcut: Tensor | None, keeps_total: bool
    ) -> tuple[Tensor, Tensor]:
        """Normalize by the batch."""
        norm = stage.norm
        convolved = convolution(maps, *self.taps(stage.convolution))
        activated, total, coefficients = batch_norm_relu(
            convolved,
            shortcut,
            norm.weight,
            norm.bias,
            norm.running_mean,
            norm.running_var,
            counters_of(norm, maps.device),
            self.groups.sizes,
            self.groups.updating,
            norm.momentum,
            norm.epsilon,
        )
        total = convolved if shortcut is None else total
        if self.keeps:
            self.passed.append(Passed(stage, maps, total, coefficients))
        return total, activated

    def backward(self, gradient: Tensor, to_images: bool) -> Tensor | None:
        """Fill `gradients` with those of the `wanted` parameters, too."""
        if not self.passed:
            raise RuntimeError("gradients of a network in bfloat16 can be taken only once")
        of_images = super().backward(gradient, to_images)
        if self.weight_gradients is not None:
            self.weight_gradients.wait()
        return of_images

    def mean_backward(self, gradient: Tensor) -> Tensor:
        """Spread the gradient over all positions."""
        maps = self.passed[-1].total
        area = maps.shape[2] * maps.shape[3]
        spread = (gradient / area)[:, :, None, None].expand_as(maps)
        return self._norm_backward(spread.contiguous(memory_format=torch.channels_last), None)

    def stage_backward(
        self, number: int, gradient: Tensor, beside: Tensor | None, shortcut: nn.Conv2d | None
    ) -> Tensor:
        """Queue the weight gradients first, as nothing of them waits for what follows."""
        stage, read, _, _ = self.passed.pop()
        self._queue_weight_gradient(stage.convolution, read, gradient)
        taps = self.taps(stage.convolution)
        if beside is None or shortcut is None:
            of_maps = convolution_backward(gradient, *taps, *read.shape[2:])
            return self._norm_backward(of_maps, beside)
        self._queue_weight_gradient(shortcut, read, beside)
        of_maps = convolution_backward(gradient, *taps, *read.shape[2:])
        convolve_1x1_backward(beside, *self.taps(shortcut), of_maps)
        return self._norm_backward(of_maps, None)

    def first_backward(self, gradient: Tensor, to_images: bool) -> Tensor | None:
        """Return the gradient of the images if it is wanted."""
        stage, read, _, _ = self.passed.pop()
        self._queue_weight_gradient(stage.convolution, read, gradient)
        if not to_images:
            return None
        taps = self.taps(stage.convolution)
        of_images: Tensor = convolution_backward(gradient, *taps, *read.shape[2:])
        return of_images

    def _norm_backward(self, gradient: Tensor, total_gradient: Tensor | None) -> Tensor:
        """Go back through the ReLU and normalization of the stage that was passed last."""
        stage, _, total, coefficients = self.passed[-1]
        norm = stage.norm
        counters, sizes = counters_of(norm, total.device), self.groups.sizes
        of_maps, *of_layer = batch_norm_relu_backward(
            gradient, total_gradient, total, coefficients, counters, sizes
        )
        for parameter, of_parameter in zip((norm.weight, norm.bias), of_layer, strict=True):
            if parameter in self.wanted:
                self.gradients[parameter] = of_parameter
        result: Tensor = of_maps
        return result

    def _queue_weight_gradient(self, layer: nn.Conv2d, read: Tensor, gradient: Tensor) -> None:
        if layer.weight in self.wanted:
            if self.weight_gradients is None:
                self.weight_gradients = WeightGradients(gradient)
            size = layer.kernel_size[0], layer.stride[0]
            self.gradients[layer.weight] = self.weight_gradients.of(read, gradient, *size)


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, walk: TrainedWalk, images: Tensor, *parameters: Tensor) -> Tensor:
        ctx.walk, ctx.parameters = walk, parameters
        return walk.forward(images)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        _, to_images, *needed = ctx.needs_input_grad
        walk, pairs = ctx.walk, zip(ctx.parameters, needed, strict=True)
        walk.wanted = {parameter for parameter, needs in pairs if needs}
        of_images = walk.backward(gradient, to_images)
        # Popped, as autograd copies a gradient that something else holds too.
        gradients = [walk.gradients.pop(parameter, None) for parameter in ctx.parameters]
        return None, of_images, *gradients


def features(layers: Layers, images: Tensor, weights: Weights) -> Tensor:
    """Return the features of channels-last images by batch statistics, to be differentiated.

    More groups than a kernel takes are several walks.
    """
    parameters = [one.weight for one in layers.convolutions]
    for norm in layers.norms:
        parameters += norm.weight, norm.bias
    keeps = torch.is_grad_enabled() and any(one.requires_grad for one in (images, *parameters))
    made, first = [], 0
    for groups in pieces_of(layers.first.norm.groups, len(images)):
        some = images[first : first + sum(groups.sizes)]
        first += len(some)
        walk = TrainedWalk(layers, weights, groups, keeps=keeps)
        if keeps:
            made.append(_Features.apply(walk, some, *parameters))  # type: ignore[no-untyped-call]
        else:
            made.append(walk.forward(some))
    return made[0] if len(made) == 1 else torch.cat(made)


def takes(layers: Layers, images: Tensor) -> bool:
    """Return whether the kernels take layers in training, and images in their groups."""
    norms, groups = layers.norms, layers.first.norm.groups
    if not all(norm.training and norm.groups == groups for norm in norms):
        return False
    counts = [sum(piece.sizes) for piece in pieces_of(groups, len(images))]
    if sum(counts) != len(images) or (groups is not None and min(groups.sizes) == 0):
        return False
    channels = {len(norm.running_mean) for norm in norms}
    return all(batch_norm.takes(one, min(counts), images.device) for one in channels)


def pieces_of(groups: StatisticsGroups | None, images: int) -> list[StatisticsGroups]:
    """Cut a batch's groups into pieces of as many as a kernel takes."""
    sizes, updating = groups or StatisticsGroups((images,), 1)
    starts = range(0, len(sizes), batch_norm.MAX_GROUPS)
    cut = [(start, sizes[start : start + batch_norm.MAX_GROUPS]) for start in starts]
    return [StatisticsGroups(some, min(max(updating - at, 0), len(some))) for at, some in cut]
