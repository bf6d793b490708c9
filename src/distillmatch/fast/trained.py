"""A wide residual network in training, forward and backward written out as one function.

Autograd would go through it layer by layer. Written out, a convolution and the normalization beside
it are one kernel where there is one, gradients that meet are added where they are made, and what is
no longer needed is let go on the way back. `Walk` knows the network and no device: what is done to
maps are `Operations`.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from distillmatch.fast import batch_statistics
from distillmatch.fast.batch_statistics import Gradients, Normalized
from distillmatch.networks.normalization import BatchNorm

if TYPE_CHECKING:
    from distillmatch.networks.wide_resnet import WideResNet


class Operations(Protocol):
    """What is done to maps. Weights have the precision of the maps."""

    def convolve_and_normalize(
        self, maps: Tensor, weight: Tensor, stride: int, shortcut: Tensor | None, norm: BatchNorm
    ) -> tuple[Tensor, Normalized]:
        """Convolve, add the shortcut, normalize by the batch and return the ReLU of that."""

    def convolve_shortcut(self, maps: Tensor, weight: Tensor, stride: int) -> Tensor:
        """Convolve by 1×1 taps."""

    def take_back(
        self,
        given: Tensor,
        weight: Tensor,
        stride: int,
        of_sum: Tensor | None,
        to: Normalized,
        norm: BatchNorm,
    ) -> Gradients:
        """Go back through a convolution, and through ReLU and normalization before it.

        `of_sum` is the gradient that the normalized maps have from elsewhere.
        """

    def take_back_convolution(
        self, given: Tensor, weight: Tensor, stride: int, shape: Sequence[int]
    ) -> Tensor:
        """Return the gradient of what a convolution read, which had this shape."""

    def take_back_shortcut(self, given: Tensor, weight: Tensor, stride: int, onto: Tensor) -> None:
        """Add the gradient of what a convolution by 1×1 taps read."""

    def take_back_normalization(self, given: Tensor, to: Normalized, norm: BatchNorm) -> Gradients:
        """Go back through ReLU and normalization."""

    def weight_gradient(self, maps: Tensor, given: Tensor, side: int, stride: int) -> Tensor:
        """Return the gradient of a convolution's weight, which may still be on its way."""

    def await_weight_gradients(self) -> None:
        """Let what follows wait for the gradients of all weights."""


class Passed(NamedTuple):
    """A convolution that was passed, what it read, and what was made of it."""

    convolution: nn.Conv2d
    read: Tensor
    norm: BatchNorm
    made: Normalized


class Walk:
    """The way of a batch through a backbone in training."""

    def __init__(
        self,
        backbone: "WideResNet",
        weights: Mapping[nn.Conv2d, Tensor],
        operations: Operations,
        *,
        keeps: bool,
    ) -> None:
        self.backbone, self.weights, self.operations = backbone, weights, operations
        self.keeps = keeps
        self.passed: list[Passed] = []

    def features(self, images: Tensor) -> Tensor:
        """Return the features of the images; what the way back needs is kept if it is wanted."""
        backbone = self.backbone
        norms = [block.norm1 for block in backbone.blocks] + [backbone.last_norm]
        summed, activated = self._pass(backbone.first, images, None, norms[0])
        for block, norm in zip(backbone.blocks, norms[1:], strict=True):
            shortcut = summed
            if block.shortcut is not None:
                taps = self.taps(block.shortcut)
                shortcut = self.operations.convolve_shortcut(activated, *taps)
            _, inner = self._pass(block.conv1, activated, None, block.norm2)
            summed, activated = self._pass(block.conv2, inner, shortcut, norm)
        return activated.mean(dim=(2, 3))

    def _pass(
        self, convolution: nn.Conv2d, maps: Tensor, shortcut: Tensor | None, norm: BatchNorm
    ) -> tuple[Tensor, Tensor]:
        """Return what was normalized, and what came of it."""
        taps = self.taps(convolution)
        activated, made = self.operations.convolve_and_normalize(maps, *taps, shortcut, norm)
        if self.keeps:
            self.passed.append(Passed(convolution, maps, norm, made))
        return made.maps, activated

    def taps(self, convolution: nn.Conv2d) -> tuple[Tensor, int]:
        """Return the weight of a convolution and its stride."""
        return self.weights[convolution], convolution.stride[0]


class WayBack:
    """The way back of a walk's gradients. What the walk has kept is let go on the way."""

    def __init__(self, walk: Walk, wanted: AbstractSet[Tensor]) -> None:
        if not walk.passed:
            raise RuntimeError("gradients of a network in bfloat16 can be taken only once")
        self.walk, self.operations = walk, walk.operations
        self.passed, walk.passed = walk.passed, []
        self.wanted = wanted
        self.gradients: dict[Tensor, Tensor] = {}

    def go(self, of_features: Tensor, to_images: bool) -> Tensor | None:
        """Make the gradients of the parameters that are wanted, and return that of the images."""
        last = self.passed[-1]
        area = last.made.maps.shape[2] * last.made.maps.shape[3]
        spread = (of_features / area)[:, :, None, None].expand_as(last.made.maps)
        spread = spread.contiguous(memory_format=torch.channels_last)
        returned = self.operations.take_back_normalization(spread, last.made, last.norm)
        given = self._noted(returned, last.norm)
        del last, spread, returned
        for block in reversed(list(self.walk.backbone.blocks)):
            if block.shortcut is None:
                given = self._through(self._through(given, None), given)
            else:
                given = self._around(self._through(given, None), given, block.shortcut)
        first = self.passed.pop()
        self._weigh(first.convolution, first.read, given)
        of_images = None
        if to_images:
            taps = self.walk.taps(first.convolution)
            of_images = self.operations.take_back_convolution(given, *taps, first.read.shape)
        self.operations.await_weight_gradients()
        return of_images

    def _through(self, given: Tensor, of_sum: Tensor | None) -> Tensor:
        """Go back through the last convolution and the normalization before it."""
        convolution, read, _, _ = self.passed.pop()
        # First, as nothing of it waits for what follows.
        self._weigh(convolution, read, given)
        before = self.passed[-1]
        taps = self.walk.taps(convolution)
        returned = self.operations.take_back(given, *taps, of_sum, before.made, before.norm)
        return self._noted(returned, before.norm)

    def _around(self, inner: Tensor, given: Tensor, shortcut: nn.Conv2d) -> Tensor:
        """Do the same where a convolved shortcut has read what the convolution did."""
        convolution, read, _, _ = self.passed.pop()
        self._weigh(convolution, read, inner)
        self._weigh(shortcut, read, given)
        before = self.passed[-1]
        taps = self.walk.taps(convolution)
        taken = self.operations.take_back_convolution(inner, *taps, read.shape)
        self.operations.take_back_shortcut(given, *self.walk.taps(shortcut), taken)
        returned = self.operations.take_back_normalization(taken, before.made, before.norm)
        return self._noted(returned, before.norm)

    def _weigh(self, convolution: nn.Conv2d, read: Tensor, given: Tensor) -> None:
        """Make the gradient of a convolution's weight."""
        weight = convolution.weight
        if weight in self.wanted:
            size = convolution.kernel_size[0], convolution.stride[0]
            self.gradients[weight] = self.operations.weight_gradient(read, given, *size)

    def _noted(self, returned: Gradients, norm: BatchNorm) -> Tensor:
        """Note the gradients of a normalization, and return that of its maps."""
        of_maps, *of_layer = returned
        for parameter, gradient in zip(norm.tensors[:2], of_layer, strict=True):
            if parameter in self.wanted:
                self.gradients[parameter] = gradient
        return of_maps


class _Backbone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, walk: Walk, images: Tensor, *parameters: Tensor) -> Tensor:
        ctx.walk, ctx.parameters = walk, parameters
        return walk.features(images)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_features: Tensor) -> Any:
        _, to_images, *needed = ctx.needs_input_grad
        pairs = zip(ctx.parameters, needed, strict=True)
        back = WayBack(ctx.walk, {parameter for parameter, needs in pairs if needs})
        of_images = back.go(of_features, to_images)
        # Let go here: autograd copies a gradient that something else holds too.
        gradients = [back.gradients.pop(parameter, None) for parameter in ctx.parameters]
        return None, of_images, *gradients


def features_by(
    backbone: "WideResNet",
    images: Tensor,
    weights: Mapping[nn.Conv2d, Tensor],
    operations: Operations,
) -> Tensor:
    """Return the backbone's features of images, by these operations, to be differentiated."""
    parameters = list(backbone.parameters())
    keeps = torch.is_grad_enabled() and any(one.requires_grad for one in (images, *parameters))
    walk = Walk(backbone, weights, operations, keeps=keeps)
    if not keeps:
        return walk.features(images)
    features: Tensor = _Backbone.apply(walk, images, *parameters)  # type: ignore[no-untyped-call]
    return features


def takes(backbone: "WideResNet", images: Tensor) -> bool:
    """Tell whether `features` can be asked: in training, in bfloat16 on CUDA, in one process."""
    if not backbone.last_norm.training:
        return False
    norms, parts, count = backbone.norms, backbone.last_norm.parts, images.shape[0]
    if (
        not images.is_cuda
        or not all(norm.training and norm.parts == parts for norm in norms)
        or not (parts is None or batch_statistics.takes_parts(parts.sizes, count))
        or not all(norm.is_plain(images.device) for norm in norms)
    ):
        return False
    channels = {norm.tensors[0].shape[0] for norm in norms}
    return all(batch_statistics.takes(one, count, images.device) for one in channels)


def features(backbone: "WideResNet", images: Tensor, weights: Mapping[nn.Conv2d, Tensor]) -> Tensor:
    """Return one vector for each image, by batch statistics."""
    from distillmatch.fast.trained_on_device import (  # noqa: PLC0415  CUDA alone
        OnDevice,
    )

    images = images.to(torch.bfloat16, memory_format=torch.channels_last)
    return features_by(backbone, images, weights, OnDevice())
