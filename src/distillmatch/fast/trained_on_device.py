"""What is done on CUDA to the maps of a network in training, by the fastest kernels there are."""

from collections.abc import Sequence

import torch
from torch import Tensor

from distillmatch.fast import batch_statistics, convolution, pointwise
from distillmatch.fast.batch_statistics import Gradients, Normalized
from distillmatch.fast.weight_gradient import WeightGradients
from distillmatch.networks.normalization import BatchNorm


class OnDevice:
    """Operations of one walk through a network, in bfloat16."""

    def __init__(self) -> None:
        self.weight_gradients: WeightGradients | None = None

    def convolve_and_normalize(
        self, maps: Tensor, weight: Tensor, stride: int, shortcut: Tensor | None, norm: BatchNorm
    ) -> tuple[Tensor, Normalized]:
        """Convolve, add the shortcut, normalize by the batch and return the ReLU of that."""
        convolved = convolution.convolve_any(maps, weight, stride)
        return batch_statistics.normalize(_channels_last(convolved), shortcut, norm)

    def convolve_shortcut(self, maps: Tensor, weight: Tensor, stride: int) -> Tensor:
        """Convolve by 1×1 taps."""
        return pointwise.convolve(maps, weight, stride)

    def take_back(
        self,
        given: Tensor,
        weight: Tensor,
        stride: int,
        of_sum: Tensor | None,
        to: Normalized,
        norm: BatchNorm,
    ) -> Gradients:
        """Go back through a convolution, and through ReLU and normalization before it."""
        taken = self.take_back_convolution(given, weight, stride, to.maps.shape)
        return batch_statistics.take_back(taken, of_sum, to, norm)

    def take_back_convolution(
        self, given: Tensor, weight: Tensor, stride: int, shape: Sequence[int]
    ) -> Tensor:
        """Return the gradient of what a convolution read, which had this shape."""
        return _channels_last(convolution.take_back(given, shape, weight, stride))

    def take_back_shortcut(self, given: Tensor, weight: Tensor, stride: int, onto: Tensor) -> None:
        """Add the gradient of what a convolution by 1×1 taps read."""
        pointwise.take_back(given, weight, stride, onto)

    def take_back_normalization(self, given: Tensor, to: Normalized, norm: BatchNorm) -> Gradients:
        """Go back through ReLU and normalization."""
        return batch_statistics.take_back(given, None, to, norm)

    def weight_gradient(self, maps: Tensor, given: Tensor, side: int, stride: int) -> Tensor:
        """Queue the gradient of a convolution's weight, beside the stream of the way back."""
        if self.weight_gradients is None:
            self.weight_gradients = WeightGradients(len(given))
        return self.weight_gradients.of(maps, given, side, stride)

    def await_weight_gradients(self) -> None:
        """Let what follows wait for the gradients of all weights."""
        if self.weight_gradients is not None:
            self.weight_gradients.wait()


def _channels_last(maps: Tensor) -> Tensor:
    """Return maps in our kernels' layout, in which a library does not always leave them."""
    return maps.contiguous(memory_format=torch.channels_last)
