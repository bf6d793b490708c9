"""Normalization by running statistics, ReLU and residual sum in one pass: Triton kernels for CUDA.

In half precision a small network waits for memory and for kernels to start, not for arithmetic.
Maps are channels-last, so a batch is a matrix with a row for each position of each image and a
column for each channel.
"""

import triton
import triton.language as tl


@triton.jit
def fixed_kernel(
    maps,
    shortcut,
    sum_to,
    activated,
    weight,
    bias,
    running_mean,
    running_variance,
    epsilon,
    rows,
    channels: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
    adds: tl.constexpr,
):
    """Do all of it in one pass by running statistics."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    column = tl.arange(0, columns)
    known = column < channels
    inside = (row < rows)[:, None] & known[None, :]
    at = row.to(tl.int64)[:, None] * channels + column[None, :]
    value = tl.load(maps + at, mask=inside, other=0.0)
    if adds:
        other = tl.load(shortcut + at, mask=inside, other=0.0)
        value = (value.to(tl.float32) + other.to(tl.float32)).to(value.dtype)
        tl.store(sum_to + at, value, mask=inside)
    scale = tl.load(weight + column, mask=known, other=0.0) / tl.sqrt(
        tl.load(running_variance + column, mask=known, other=1.0) + epsilon
    )
    shift = tl.load(bias + column, mask=known, other=0.0)
    shift -= tl.load(running_mean + column, mask=known, other=0.0) * scale
    result = tl.maximum(value.to(tl.float32) * scale[None, :] + shift[None, :], 0.0)
    tl.store(activated + at, result.to(value.dtype), mask=inside)


@triton.jit
def fixed_backward_kernel(
    gradient,
    sum_gradient,
    activated,
    result_to,
    weight,
    running_variance,
    epsilon,
    rows,
    channels: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
    adds: tl.constexpr,
):
    """Take a gradient back through a pass by running statistics."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    column = tl.arange(0, columns)
    known = column < channels
    inside = (row < rows)[:, None] & known[None, :]
    at = row.to(tl.int64)[:, None] * channels + column[None, :]
    passed = tl.load(activated + at, mask=inside, other=0.0) > 0.0
    given = tl.load(gradient + at, mask=inside, other=0.0)
    scale = tl.load(weight + column, mask=known, other=0.0) / tl.sqrt(
        tl.load(running_variance + column, mask=known, other=1.0) + epsilon
    )
    result = tl.where(passed, given.to(tl.float32), 0.0) * scale[None, :]
    if adds:
        result += tl.load(sum_gradient + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(result_to + at, result.to(given.dtype), mask=inside)
