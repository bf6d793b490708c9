"""Convolutions whose weight gradients are made beside the rest of the backward pass.

In half precision on CUDA the kernels are our own where they are faster than cuDNN's: where channels
are few. Weight gradients are computed on a second stream: nothing of the backward pass waits for
them but its end.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from distillmatch.networks.kernels.sharing import device_is_shared
from distillmatch.networks.kernels.streams import stream_beside
from distillmatch.networks.normalization import HAS_TRITON

HALF = (torch.bfloat16, torch.float16)
LARGE_BATCH = 128
"""Images from which on a batch's kernels fill a device, measured on an H200 at 32 pixels."""


class Convolution(nn.Conv2d):
    """A square convolution without bias, its input padded by half of its side."""

    def __init__(self, channels_in: int, channels_out: int, side: int, stride: int) -> None:
        super().__init__(channels_in, channels_out, side, stride, padding=side // 2, bias=False)
        self.rounded: Tensor | None = None

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve the maps."""
        rounded = self.rounded  # another thread that asks the same network may take it away
        if rounded is None or self.kernel_size[0] not in (1, 3):
            return super().forward(maps)
        maps = maps.to(rounded.dtype, memory_format=torch.channels_last)
        convolved: Tensor = _Convolve.apply(maps, self.weight, rounded, self.stride[0])  # type: ignore[no-untyped-call]
        return convolved


@contextmanager
def rounded_weights(convolutions: Sequence[Convolution]) -> Iterator[None]:
    """Round the weights of all convolutions at once, for a forward in half precision on CUDA.

    Elsewhere it does nothing: there is nothing to round.
    """
    weights = [convolution.weight for convolution in convolutions]
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    if not (HAS_TRITON and weights[0].is_cuda and dtype in HALF):
        yield
        return
    from distillmatch.networks.kernels import parameters as kernel  # noqa: PLC0415  CUDA alone

    with torch.no_grad():
        rounded = [
            torch.empty_like(weight, dtype=dtype, memory_format=torch.channels_last)
            for weight in weights
        ]
        if kernel.rounds(weights, rounded):
            kernel.round_to(rounded, weights)
        else:
            torch._foreach_copy_(rounded, weights)
    for convolution, weight in zip(convolutions, rounded, strict=True):
        convolution.rounded = weight
    try:
        yield
    finally:
        for convolution in convolutions:
            convolution.rounded = None


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, rounded: Tensor, stride: int) -> Tensor:
        from distillmatch.networks.kernels import convolution  # noqa: PLC0415  CUDA alone

        ctx.save_for_backward(maps, rounded)
        ctx.stride = stride
        if convolution.takes(maps, rounded, stride):
            return convolution.convolve(maps, rounded)
        return functional.conv2d(maps, rounded, stride=stride, padding=rounded.shape[2] // 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        from distillmatch.networks.kernels.weight_gradient import (  # noqa: PLC0415  needs Triton
            weight_gradient,
        )

        maps, rounded = ctx.saved_tensors
        given = gradients[0].contiguous(memory_format=torch.channels_last)
        of_maps = of_weight = None
        if ctx.needs_input_grad[1]:
            with _beside(maps, given):
                of_weight = weight_gradient(maps, given, rounded.shape[2], ctx.stride)
        if ctx.needs_input_grad[0]:
            of_maps = _taken_back(given, maps, rounded, ctx.stride)
        return of_maps, of_weight, None, None


def _taken_back(given: Tensor, maps: Tensor, rounded: Tensor, stride: int) -> Tensor:
    """Return the gradient of the maps from that of the convolved ones."""
    from distillmatch.networks.kernels import convolution  # noqa: PLC0415  CUDA alone

    if convolution.takes(given, rounded, stride, transposed=True):
        return convolution.convolve(given, rounded, transposed=True)
    padding = rounded.shape[2] // 2
    of_maps: Tensor = torch.ops.aten.convolution_backward(
        given,
        maps,
        rounded,
        None,
        [stride, stride],
        [padding, padding],
        [1, 1],
        False,
        [0, 0],
        1,
        [True, False, False],
    )[0]
    return of_maps


def _beside(maps: Tensor, given: Tensor) -> AbstractContextManager[None]:
    """Return where weight gradients are computed: on a second stream, if that fills gaps.

    Where other runs share the device, their large batches leave none.
    """
    if device_is_shared() and len(maps) >= LARGE_BATCH:
        return nullcontext()
    return _Beside(maps, given)


class _Beside(AbstractContextManager[None]):
    """Within its block, work is queued beside the stream at hand, to be awaited after backward."""

    def __init__(self, *read: Tensor) -> None:
        self.read = read
        self.stream = torch.cuda.current_stream()
        self.companion = stream_beside(self.stream, "weight gradients")
        self.block = torch.cuda.stream(self.companion)

    def __enter__(self) -> None:
        self.companion.wait_stream(self.stream)
        self.block.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        self.block.__exit__(*error)
        for tensor in self.read:
            # Their memory may not be used again before the companion has read it.
            tensor.record_stream(self.companion)
        stream, companion = self.stream, self.companion
        torch.autograd.Variable._execution_engine.queue_callback(
            lambda: stream.wait_stream(companion)
        )
