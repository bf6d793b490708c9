"""Convolutions whose weight gradients are made beside the rest of the backward pass.

In half precision on CUDA the kernels are our own where they are faster than cuDNN's: where channels
are few. Weight gradients are computed on a second stream: nothing of the backward pass waits for
them but its end.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

HALF = (torch.bfloat16, torch.float16)


class Convolution(nn.Conv2d):
    """A square convolution without bias, its input padded by half of its side."""

    def __init__(self, channels_in: int, channels_out: int, side: int, stride: int) -> None:
        super().__init__(channels_in, channels_out, side, stride, padding=side // 2, bias=False)
        self.rounded: Tensor | None = None

    def rounded_or_round(self, dtype: torch.dtype) -> Tensor:
        """Return the rounded weights: another thread that asks the same network may take them."""
        rounded = self.rounded
        if rounded is None:
            return self.weight.detach().to(dtype, memory_format=torch.channels_last)
        return rounded

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve the maps."""
        rounded = self.rounded  # another thread that asks the same network may take it away
        if rounded is None or self.kernel_size[0] not in (1, 3):
            return super().forward(maps)
        maps = maps.to(rounded.dtype, memory_format=torch.channels_last)
        convolved: Tensor = _Convolve.apply(maps, self.weight, rounded, self.stride[0])  # type: ignore[no-untyped-call]
        return convolved


def has_kernels(device: torch.device) -> bool:
    """Tell whether a device is one that our kernels can be compiled for."""
    if device.type != "cuda":
        return False
    from distillmatch.cuda.compiled import is_new_enough  # noqa: PLC0415  CUDA alone

    return is_new_enough(device)


@contextmanager
def rounded_weights(convolutions: Sequence[Convolution]) -> Iterator[None]:
    """Round the weights of all convolutions at once, for a forward in half precision on CUDA.

    Elsewhere it does nothing: there is nothing to round.
    """
    weights = [convolution.weight for convolution in convolutions]
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    if not (dtype in HALF and has_kernels(weights[0].device)):
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
    # Not by assignment, which would let each module look for a parameter of that name first.
    for convolution, weight in zip(convolutions, rounded, strict=True):
        vars(convolution)["rounded"] = weight
    try:
        yield
    finally:
        for convolution in convolutions:
            vars(convolution)["rounded"] = None


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, rounded: Tensor, stride: int) -> Tensor:
        from distillmatch.networks.kernels import convolution  # noqa: PLC0415  CUDA alone

        ctx.save_for_backward(maps, rounded)
        ctx.stride = stride
        return convolution.convolve_any(maps, rounded, stride)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        from distillmatch.networks.kernels import convolution  # noqa: PLC0415  CUDA alone
        from distillmatch.networks.kernels.weight_gradient import (  # noqa: PLC0415  CUDA alone
            WeightGradients,
        )

        maps, rounded = ctx.saved_tensors
        given = gradients[0].contiguous(memory_format=torch.channels_last)
        of_maps = of_weight = None
        if ctx.needs_input_grad[1]:
            beside = WeightGradients(len(maps))
            of_weight = beside.of(maps, given, rounded.shape[2], ctx.stride)
            torch.autograd.Variable._execution_engine.queue_callback(beside.wait)
        if ctx.needs_input_grad[0]:
            of_maps = convolution.take_back(given, maps.shape, rounded, ctx.stride)
        return of_maps, of_weight, None, None
