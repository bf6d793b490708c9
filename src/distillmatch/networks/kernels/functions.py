"""Normalization, ReLU and residual sum as functions that autograd knows, by our kernels."""

from typing import Any

import torch
import triton
from torch import Tensor

from distillmatch.networks.kernels.normalization import (
    activate_kernel,
    backward_kernel,
    backward_sum_kernel,
    fixed_backward_kernel,
    fixed_kernel,
    slopes_kernel,
    statistics_kernel,
    sum_kernel,
)

PROGRAMS = 528
"""Programs a reduction is shared by: four for each multiprocessor of a large GPU."""
TILE = 4096
"""Numbers that a program holds at once."""
ROUND = 1024
"""Partial sums that are added at once, whatever the batch: its size compiles nothing anew."""
FINAL_COLUMNS = 4
"""Channels whose partial sums one program adds up."""


class _Shape:
    """How a batch of maps is cut into rows, tiles and programs."""

    def __init__(self, maps: Tensor, leading: int | None) -> None:
        images, self.channels, height, width = maps.shape
        self.rows = images * height * width
        self.leading = self.rows if leading is None else leading * height * width
        self.parts = 1 if self.leading == self.rows else 2
        self.columns = triton.next_power_of_2(self.channels)
        self.block = max(1, TILE // self.columns)
        self.rows_each = triton.next_power_of_2(max(self.block, self.rows // PROGRAMS))
        self.tiles_of_first = triton.cdiv(self.leading, self.rows_each)
        self.tiles = self.tiles_of_first + triton.cdiv(self.rows - self.leading, self.rows_each)
        self.grid = (triton.cdiv(self.rows, self.block),)
        self.final_columns = min(FINAL_COLUMNS, self.columns)
        self.final_grid = (triton.cdiv(self.channels, self.final_columns),)

    @property
    def of_sums(self) -> tuple[int, ...]:
        """What kernels are told that sum over the rows of each part."""
        shares = self.leading, self.rows, self.tiles_of_first, self.rows_each
        return (*shares, self.channels, self.columns, self.block)

    @property
    def of_parts(self) -> tuple[int, ...]:
        """What kernels are told that change every row, each part by its own figures."""
        return self.leading, self.rows, self.channels, self.columns, self.block, self.parts

    @property
    def of_rows(self) -> tuple[int, ...]:
        """What kernels are told that change every row alike."""
        return self.rows, self.channels, self.columns, self.block


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
        leading: int | None,
        moves: bool,
        momentum: float,
        epsilon: float,
    ) -> tuple[Tensor | None, Tensor]:
        """Return the sum, where there is a shortcut, and the activated maps."""
        shape = _Shape(maps, leading)
        summed = maps if shortcut is None else torch.empty_like(maps)
        partial = torch.empty(shape.tiles, 2, shape.channels, device=maps.device)
        sum_kernel[(shape.tiles,)](
            maps,
            shortcut,
            summed,
            partial,
            *shape.of_sums,
            shortcut is not None,
        )
        coefficients = torch.empty(shape.parts, 4, shape.channels, device=maps.device)
        statistics_kernel[shape.final_grid](
            partial,
            weight,
            bias,
            running_mean,
            running_variance,
            coefficients,
            shape.leading,
            shape.rows,
            shape.tiles_of_first,
            shape.tiles,
            momentum,
            epsilon,
            shape.channels,
            shape.final_columns,
            ROUND,
            shape.parts,
            moves,
        )
        activated = torch.empty_like(maps)
        activate_kernel[shape.grid](
            summed,
            activated,
            coefficients,
            *shape.of_parts,
        )
        ctx.save_for_backward(summed, coefficients)
        ctx.leading, ctx.has_shortcut = leading, shortcut is not None
        ctx.set_materialize_grads(False)
        return (summed if shortcut is not None else None), activated

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Return the gradients of maps, shortcut, weight and bias."""
        of_sum, of_activated = gradients
        assert of_activated is not None
        maps, coefficients = ctx.saved_tensors
        shape = _Shape(maps, ctx.leading)
        given = of_activated.contiguous(memory_format=torch.channels_last)
        partial = torch.empty(shape.tiles, 2, shape.channels, device=maps.device)
        backward_sum_kernel[(shape.tiles,)](
            given,
            maps,
            partial,
            coefficients,
            *shape.of_sums,
        )
        slopes = torch.empty(shape.parts, 2, shape.channels, device=maps.device)
        of_weight = torch.empty(shape.channels, device=maps.device)
        of_bias = torch.empty(shape.channels, device=maps.device)
        slopes_kernel[shape.final_grid](
            partial,
            coefficients,
            slopes,
            of_weight,
            of_bias,
            shape.leading,
            shape.rows,
            shape.tiles_of_first,
            shape.tiles,
            shape.channels,
            shape.final_columns,
            ROUND,
            shape.parts,
        )
        of_maps = torch.empty_like(maps)
        if of_sum is not None:
            of_sum = of_sum.contiguous(memory_format=torch.channels_last)
        backward_kernel[shape.grid](
            given,
            of_sum,
            maps,
            of_maps,
            coefficients,
            slopes,
            *shape.of_parts,
            of_sum is not None,
        )
        of_shortcut = of_maps if ctx.has_shortcut else None
        return of_maps, of_shortcut, of_weight, of_bias, *([None] * 6)


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
        shape = _Shape(maps, None)
        summed = maps if shortcut is None else torch.empty_like(maps)
        activated = torch.empty_like(maps)
        fixed_kernel[shape.grid](
            maps,
            shortcut,
            summed,
            activated,
            weight,
            bias,
            running_mean,
            running_variance,
            epsilon,
            *shape.of_rows,
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
        shape = _Shape(activated, None)
        of_maps = torch.empty_like(activated)
        if of_sum is not None:
            of_sum = of_sum.contiguous(memory_format=torch.channels_last)
        fixed_backward_kernel[shape.grid](
            of_activated.contiguous(memory_format=torch.channels_last),
            of_sum,
            activated,
            of_maps,
            weight,
            running_variance,
            ctx.epsilon,
            *shape.of_rows,
            of_sum is not None,
        )
        return of_maps, of_maps if ctx.has_shortcut else None, *([None] * 5)
