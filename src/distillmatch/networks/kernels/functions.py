"""Normalization, ReLU and residual sum as functions that autograd knows, by our kernels."""

from typing import Any

import torch
import triton
from torch import Tensor

from distillmatch.networks.kernels import batch_statistics
from distillmatch.networks.kernels.running_statistics import fixed_backward_kernel, fixed_kernel

TILE = 4096
"""Numbers that a program holds at once."""


class NormalizeByBatch(torch.autograd.Function):
    """ReLU of maps, or of their sum with a shortcut, normalized by the statistics of the batch."""

    @staticmethod
    def forward(
        ctx: Any,
        maps: Tensor,
        shortcut: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_variance: Tensor,
        epsilon: float,
        counters: Tensor,
        leading: int | None,
        moves: bool,
        momentum: float,
    ) -> tuple[Tensor | None, Tensor]:
        """Return the sum, where there is a shortcut, and the activated maps."""
        summed, activated, coefficients = batch_statistics.normalize(
            maps,
            shortcut,
            weight,
            bias,
            (running_mean, running_variance),
            counters,
            leading,
            moves,
            momentum,
            epsilon,
        )
        ctx.save_for_backward(summed, coefficients)
        ctx.counters, ctx.leading, ctx.has_shortcut = counters, leading, shortcut is not None
        ctx.set_materialize_grads(False)
        return (summed if shortcut is not None else None), activated

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Return the gradients of maps, shortcut, weight and bias."""
        of_sum, of_activated = gradients
        assert of_activated is not None
        maps, coefficients = ctx.saved_tensors
        of_maps, of_weight, of_bias = batch_statistics.take_back(
            of_activated.contiguous(memory_format=torch.channels_last),
            None if of_sum is None else of_sum.contiguous(memory_format=torch.channels_last),
            maps,
            coefficients,
            ctx.counters,
            ctx.leading,
        )
        of_shortcut = of_maps if ctx.has_shortcut else None
        return of_maps, of_shortcut, of_weight, of_bias, *([None] * 7)


class NormalizeByRunning(torch.autograd.Function):
    """The same by running statistics, in one pass; only the maps get gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        maps: Tensor,
        shortcut: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_variance: Tensor,
        epsilon: float,
    ) -> tuple[Tensor | None, Tensor]:
        """Return the sum, where there is a shortcut, and the activated maps."""
        grid, sizes = _rows(maps)
        summed = maps if shortcut is None else torch.empty_like(maps)
        activated = torch.empty_like(maps)
        fixed_kernel[grid](
            maps,
            shortcut,
            summed,
            activated,
            weight,
            bias,
            running_mean,
            running_variance,
            epsilon,
            *sizes,
            shortcut is not None,
        )
        ctx.save_for_backward(activated, weight, running_variance)
        ctx.epsilon, ctx.has_shortcut = epsilon, shortcut is not None
        ctx.set_materialize_grads(False)
        return (summed if shortcut is not None else None), activated

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Return the gradients of maps and shortcut."""
        of_sum, of_activated = gradients
        assert of_activated is not None
        activated, weight, running_variance = ctx.saved_tensors
        grid, sizes = _rows(activated)
        of_maps = torch.empty_like(activated)
        if of_sum is not None:
            of_sum = of_sum.contiguous(memory_format=torch.channels_last)
        fixed_backward_kernel[grid](
            of_activated.contiguous(memory_format=torch.channels_last),
            of_sum,
            activated,
            of_maps,
            weight,
            running_variance,
            ctx.epsilon,
            *sizes,
            of_sum is not None,
        )
        return of_maps, of_maps if ctx.has_shortcut else None, *([None] * 5)


def _rows(maps: Tensor) -> tuple[tuple[int], tuple[int, int, int, int]]:
    """Return the programs that maps are shared by, and their rows, channels and tile."""
    images, channels, height, width = maps.shape
    rows, columns = images * height * width, triton.next_power_of_2(channels)
    block = max(1, TILE // columns)
    return (triton.cdiv(rows, block),), (rows, channels, columns, block)
