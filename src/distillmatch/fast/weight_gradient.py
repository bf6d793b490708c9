"""The weight gradient of a convolution with few channels, by kernels for CUDA.

It is a product of matrices, one a few channels high and wide, over hundreds of thousands of
positions. cuDNN takes twice as long for it with 32 channels as for the convolution itself. The
sizes that most of a network's convolutions have are taken by a kernel (cuda_weight_gradient), all
others by cuDNN, or by a matrix product for 1×1 taps. Weight gradients are computed on a second
stream: nothing of the backward pass waits for them but its end.
"""

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from distillmatch.concurrency import companion_stream, device_is_shared
from distillmatch.fast import cuda_weight_gradient, pointwise
from distillmatch.fast.sharing import LARGE_BATCH


class WeightGradients:
    """Weight gradients of a backward pass, made beside its stream if that fills gaps.

    Where other runs share the device, their large batches leave none.
    """

    def __init__(self, images: int) -> None:
        self.stream = self.companion = torch.cuda.current_stream()
        if images < LARGE_BATCH or not device_is_shared():
            self.companion = companion_stream(self.stream, "weight gradients")

    def of(self, maps: Tensor, gradient: Tensor, side: int, stride: int) -> Tensor:
        """Queue the gradient of a weight and return it; it must be awaited."""
        if self.companion is self.stream:
            return weight_gradient(maps, gradient, side, stride)
        self.companion.wait_stream(self.stream)
        with torch.cuda.stream(self.companion):
            made = weight_gradient(maps, gradient, side, stride)
        for read in (maps, gradient):
            # Their memory may not be used again before the companion has read it.
            read.record_stream(self.companion)
        return made

    def wait(self) -> None:
        """Let the stream wait for all that was queued beside it."""
        if self.companion is not self.stream:
            self.stream.wait_stream(self.companion)


def weight_gradient(maps: Tensor, gradient: Tensor, side: int, stride: int) -> Tensor:
    """Return the gradient of the weights, in float32 and channels-last."""
    if cuda_weight_gradient.takes(maps, gradient, side, stride):
        return cuda_weight_gradient.weight_gradient(maps, gradient).permute(0, 3, 1, 2)
    if side == 1:
        return pointwise.weight_gradient(maps, gradient, stride)
    return _by_torch(maps, gradient, side, stride)


def _by_torch(maps: Tensor, gradient: Tensor, side: int, stride: int) -> Tensor:
    """Return it as torch makes it, which rounds it to the maps' precision."""
    shape = (gradient.shape[1], maps.shape[1], side, side)
    made: Tensor = conv2d_weight(maps, shape, gradient, stride=stride, padding=side // 2)  # type: ignore[no-untyped-call]
    return made.to(torch.float32, memory_format=torch.channels_last)
