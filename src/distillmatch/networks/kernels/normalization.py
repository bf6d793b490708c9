"""Normalization, ReLU and residual sum as few passes over memory: Triton kernels for CUDA.

In half precision a step of a small network waits for memory and for kernels to start, not for
arithmetic. Here normalization, ReLU and the sum before them take two passes over the maps forward
and two backward, and statistics of two parts of a batch cost no more than those of one. cuDNN and
torch.compile were measured beside them: docs/performance.md.

Maps are channels-last, so a batch is a matrix with a row for each position of each image and a
column for each channel. The first `leading` rows are one part and the rest another. All sums are
taken in a fixed order, so two runs agree to the bit.
"""

import triton
import triton.language as tl


@triton.jit
def _share(tile, tiles_of_first, leading, rows, rows_each):
    """Return the first row of a program's share, and the one after its last."""
    of_first = tile < tiles_of_first
    begin = tl.where(of_first, tile * rows_each, leading + (tile - tiles_of_first) * rows_each)
    return begin, tl.minimum(begin + rows_each, tl.where(of_first, leading, rows))


@triton.jit
def _total(partial, begin, end, column, channels: tl.constexpr, round: tl.constexpr):
    """Add up the two sums that the programs from `begin` to `end` have left, in their order."""
    first = tl.zeros((round, column.shape[0]), tl.float32)
    second = tl.zeros((round, column.shape[0]), tl.float32)
    for start in range(begin, end, round):
        tile = start + tl.arange(0, round)
        given = (tile < end)[:, None] & (column < channels)[None, :]
        at = partial + tile[:, None] * 2 * channels + column[None, :]
        first += tl.load(at, mask=given, other=0.0)
        second += tl.load(at + channels, mask=given, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def sum_kernel(
    maps,
    shortcut,
    sum_to,
    partial,
    leading,
    rows,
    tiles_of_first,
    rows_each,
    channels: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
    adds: tl.constexpr,
):
    """Add two maps, if asked, and sum the values and their squares over some rows."""
    program = tl.program_id(0)
    begin, end = _share(program, tiles_of_first, leading, rows, rows_each)
    column = tl.arange(0, columns)
    known = column < channels
    total = tl.zeros((block, columns), tl.float32)
    squares = tl.zeros((block, columns), tl.float32)
    for start in range(0, rows_each, block):
        row = begin + start + tl.arange(0, block)
        inside = (row < end)[:, None] & known[None, :]
        at = row.to(tl.int64)[:, None] * channels + column[None, :]
        value = tl.load(maps + at, mask=inside, other=0.0)
        if adds:
            other = tl.load(shortcut + at, mask=inside, other=0.0)
            value = (value.to(tl.float32) + other.to(tl.float32)).to(value.dtype)
            tl.store(sum_to + at, value, mask=inside)
        number = value.to(tl.float32)
        total += number
        squares += number * number
    to = partial + program * 2 * channels + column
    tl.store(to, tl.sum(total, 0), mask=known)
    tl.store(to + channels, tl.sum(squares, 0), mask=known)


@triton.jit
def statistics_kernel(
    partial,
    weight,
    bias,
    running_mean,
    running_variance,
    coefficients,
    leading,
    rows,
    tiles_of_first,
    tiles,
    momentum,
    epsilon,
    channels: tl.constexpr,
    columns: tl.constexpr,
    round: tl.constexpr,
    parts: tl.constexpr,
    moves: tl.constexpr,
):
    """Turn sums into mean and deviation of each part, and into scale and shift."""
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    known = column < channels
    gain = tl.load(weight + column, mask=known, other=0.0)
    offset = tl.load(bias + column, mask=known, other=0.0)
    for part in tl.static_range(parts):
        first, after, count = 0, tiles_of_first, leading
        if part == 1:
            first, after, count = tiles_of_first, tiles, rows - leading
        total, squares = _total(partial, first, after, column, channels, round)
        mean = total / count
        variance = tl.maximum(squares / count - mean * mean, 0.0)
        inverse = 1.0 / tl.sqrt(variance + epsilon)
        to = coefficients + part * 4 * channels + column
        tl.store(to, gain * inverse, mask=known)
        tl.store(to + channels, offset - mean * gain * inverse, mask=known)
        tl.store(to + 2 * channels, mean, mask=known)
        tl.store(to + 3 * channels, inverse, mask=known)
        if moves and part == 0:
            unbiased = variance * (count / tl.maximum(count - 1.0, 1.0))
            before = tl.load(running_mean + column, mask=known, other=0.0)
            tl.store(running_mean + column, before + momentum * (mean - before), mask=known)
            before = tl.load(running_variance + column, mask=known, other=0.0)
            moved = before + momentum * (unbiased - before)
            tl.store(running_variance + column, moved, mask=known)


@triton.jit
def _scale_and_shift(
    coefficients, row, leading, column, channels: tl.constexpr, parts: tl.constexpr
):
    """Load scale and shift of a tile's rows."""
    inside = column < channels
    scale = tl.load(coefficients + column, mask=inside, other=0.0)[None, :]
    shift = tl.load(coefficients + channels + column, mask=inside, other=0.0)[None, :]
    if parts == 2:
        further = coefficients + 4 * channels + column
        is_first = (row < leading)[:, None]
        scale = tl.where(is_first, scale, tl.load(further, mask=inside, other=0.0)[None, :])
        shift = tl.where(
            is_first, shift, tl.load(further + channels, mask=inside, other=0.0)[None, :]
        )
    return scale, shift


@triton.jit
def activate_kernel(
    maps,
    activated,
    coefficients,
    leading,
    rows,
    channels: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
    parts: tl.constexpr,
):
    """Scale, shift and cut off below zero."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    column = tl.arange(0, columns)
    inside = (row < rows)[:, None] & (column < channels)[None, :]
    at = row.to(tl.int64)[:, None] * channels + column[None, :]
    value = tl.load(maps + at, mask=inside, other=0.0)
    scale, shift = _scale_and_shift(coefficients, row, leading, column, channels, parts)
    result = tl.maximum(value.to(tl.float32) * scale + shift, 0.0)
    tl.store(activated + at, result.to(value.dtype), mask=inside)


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


@triton.jit
def backward_sum_kernel(
    gradient,
    maps,
    partial,
    coefficients,
    leading,
    rows,
    tiles_of_first,
    rows_each,
    channels: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
):
    """Sum the gradient that passes the ReLU, and its product with the maps, over some rows."""
    program = tl.program_id(0)
    begin, end = _share(program, tiles_of_first, leading, rows, rows_each)
    column = tl.arange(0, columns)
    known = column < channels
    own = coefficients + tl.where(program < tiles_of_first, 0, 4 * channels) + column
    scale = tl.load(own, mask=known, other=0.0)[None, :]
    shift = tl.load(own + channels, mask=known, other=0.0)[None, :]
    total = tl.zeros((block, columns), tl.float32)
    products = tl.zeros((block, columns), tl.float32)
    for start in range(0, rows_each, block):
        row = begin + start + tl.arange(0, block)
        inside = (row < end)[:, None] & known[None, :]
        at = row.to(tl.int64)[:, None] * channels + column[None, :]
        value = tl.load(maps + at, mask=inside, other=0.0).to(tl.float32)
        given = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
        passed = tl.where(value * scale + shift > 0.0, given, 0.0)
        total += passed
        products += passed * value
    to = partial + program * 2 * channels + column
    tl.store(to, tl.sum(total, 0), mask=known)
    tl.store(to + channels, tl.sum(products, 0), mask=known)


@triton.jit
def slopes_kernel(
    partial,
    coefficients,
    slopes,
    weight_gradient,
    bias_gradient,
    leading,
    rows,
    tiles_of_first,
    tiles,
    channels: tl.constexpr,
    columns: tl.constexpr,
    round: tl.constexpr,
    parts: tl.constexpr,
):
    """Turn sums into the gradients of weight and bias, and what each map's gradient is made of."""
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    known = column < channels
    of_weight = tl.zeros((columns,), tl.float32)
    of_bias = tl.zeros((columns,), tl.float32)
    for part in tl.static_range(parts):
        first, after, count = 0, tiles_of_first, leading
        if part == 1:
            first, after, count = tiles_of_first, tiles, rows - leading
        total, products = _total(partial, first, after, column, channels, round)
        own = coefficients + part * 4 * channels + column
        gain = tl.load(own, mask=known, other=0.0)
        mean = tl.load(own + 2 * channels, mask=known, other=0.0)
        inverse = tl.load(own + 3 * channels, mask=known, other=0.0)
        along = inverse * (products - mean * total)
        of_weight += along
        of_bias += total
        slope = -gain * inverse * along / count
        to = slopes + part * 2 * channels + column
        tl.store(to, slope, mask=known)
        tl.store(to + channels, -gain * total / count - slope * mean, mask=known)
    tl.store(weight_gradient + column, of_weight, mask=known)
    tl.store(bias_gradient + column, of_bias, mask=known)


@triton.jit
def backward_kernel(
    gradient,
    sum_gradient,
    maps,
    result_to,
    coefficients,
    slopes,
    leading,
    rows,
    channels: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
    parts: tl.constexpr,
    adds: tl.constexpr,
):
    """Put the gradient of the maps together: scale · passed + slope · map + constant."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    column = tl.arange(0, columns)
    known = column < channels
    inside = (row < rows)[:, None] & known[None, :]
    at = row.to(tl.int64)[:, None] * channels + column[None, :]
    stored = tl.load(maps + at, mask=inside, other=0.0)
    value = stored.to(tl.float32)
    given = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    scale, shift = _scale_and_shift(coefficients, row, leading, column, channels, parts)
    slope = tl.load(slopes + column, mask=known, other=0.0)[None, :]
    constant = tl.load(slopes + channels + column, mask=known, other=0.0)[None, :]
    if parts == 2:
        further = slopes + 2 * channels + column
        is_first = (row < leading)[:, None]
        slope = tl.where(is_first, slope, tl.load(further, mask=known, other=0.0)[None, :])
        constant = tl.where(
            is_first, constant, tl.load(further + channels, mask=known, other=0.0)[None, :]
        )
    passed = tl.where(value * scale + shift > 0.0, given, 0.0)
    result = scale * passed + slope * value + constant
    if adds:
        result += tl.load(sum_gradient + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(result_to + at, result.to(stored.dtype), mask=inside)
