"""The weight gradient of a convolution with few channels, by kernels for CUDA.

It is a product of matrices, one a few channels high and wide, over hundreds of thousands of
positions. cuDNN takes twice as long for it with 32 channels as for the convolution itself. The
sizes that most of a network's convolutions have are taken by a kernel in CUDA
(cuda_weight_gradient), all others by that in Triton here. Weight gradients are computed on a second
stream: nothing of the backward pass waits for them but its end.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from distillmatch.networks.kernels import cuda_weight_gradient
from distillmatch.networks.kernels.sharing import LARGE_BATCH, device_is_shared
from distillmatch.networks.kernels.streams import stream_beside


@triton.jit
def _weight_gradient_kernel(
    maps,
    gradient,
    partial,
    positions,
    positions_each,
    height: tl.constexpr,
    width: tl.constexpr,
    out_height: tl.constexpr,
    out_width: tl.constexpr,
    channels_in: tl.constexpr,
    channels_out: tl.constexpr,
    columns_in: tl.constexpr,
    columns_out: tl.constexpr,
    blocks_in: tl.constexpr,
    kernel: tl.constexpr,
    stride: tl.constexpr,
    block: tl.constexpr,
):
    """Add up one row of the kernel over some positions of the output."""
    share = tl.program_id(0)
    down = tl.program_id(1)
    column_in = (tl.program_id(2) % blocks_in) * columns_in + tl.arange(0, columns_in)
    column_out = (tl.program_id(2) // blocks_in) * columns_out + tl.arange(0, columns_out)
    known_in = (column_in < channels_in)[None, :]
    known_out = (column_out < channels_out)[None, :]
    left = tl.zeros((columns_out, columns_in), tl.float32)
    middle = tl.zeros((columns_out, columns_in), tl.float32)
    right = tl.zeros((columns_out, columns_in), tl.float32)
    begin = share * positions_each
    for start in range(0, positions_each, block):
        position = begin + start + tl.arange(0, block)
        inside = (position < positions) & (position < begin + positions_each)
        across = position % out_width
        row = (position // out_width) % out_height
        image = position // (out_width * out_height)
        given = tl.load(
            gradient + position.to(tl.int64)[:, None] * channels_out + column_out[None, :],
            mask=inside[:, None] & known_out,
            other=0.0,
        )
        given = tl.trans(given)
        from_row = row * stride + down - kernel // 2
        inside = inside & (from_row >= 0) & (from_row < height)
        from_column = across * stride - kernel // 2
        at = ((image * height + from_row) * width + from_column).to(tl.int64)
        base = maps + at[:, None] * channels_in + column_in[None, :]
        there = inside & (from_column >= 0)
        left = tl.dot(given, tl.load(base, mask=there[:, None] & known_in, other=0.0), left)
        if kernel == 3:
            there = inside & (from_column + 1 < width)
            seen = tl.load(base + channels_in, mask=there[:, None] & known_in, other=0.0)
            middle = tl.dot(given, seen, middle)
            there = inside & (from_column + 2 < width)
            seen = tl.load(base + 2 * channels_in, mask=there[:, None] & known_in, other=0.0)
            right = tl.dot(given, seen, right)
    area: tl.constexpr = kernel * kernel
    to = partial + share * (channels_out * area * channels_in)
    to += column_out[:, None] * (area * channels_in) + down * kernel * channels_in
    to += column_in[None, :]
    known = tl.trans(known_out) & known_in
    tl.store(to, left, mask=known)
    if kernel == 3:
        tl.store(to + channels_in, middle, mask=known)
        tl.store(to + 2 * channels_in, right, mask=known)


@triton.jit
def _add_up_kernel(partial, total, count, shares, rows: tl.constexpr, columns: tl.constexpr):
    """Add up the shares of some numbers."""
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    sums = tl.zeros((rows, columns), tl.float32)
    for start in range(0, shares, rows):
        row = start + tl.arange(0, rows)
        inside = (row < shares)[:, None] & (column < count)[None, :]
        sums += tl.load(partial + row[:, None] * count + column[None, :], mask=inside, other=0.0)
    tl.store(total + column, tl.sum(sums, 0), mask=column < count)


class WeightGradients:
    """Weight gradients of a backward pass, made beside its stream if that fills gaps.

    Where other runs share the device, their large batches leave none.
    """

    def __init__(self, images: int) -> None:
        self.stream = self.companion = torch.cuda.current_stream()
        if images < LARGE_BATCH or not device_is_shared():
            self.companion = stream_beside(self.stream, "weight gradients")

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
    return _by_triton(maps, gradient, side, stride).permute(0, 3, 1, 2)


def _by_triton(maps: Tensor, gradient: Tensor, side: int, stride: int) -> Tensor:
    """Return it by channel out, row, column and channel in; its sizes were fastest on an H200."""
    images, channels_in, height, width = maps.shape
    _, channels_out, out_height, out_width = gradient.shape
    positions = images * out_height * out_width
    columns_in = max(16, min(64, triton.next_power_of_2(channels_in)))
    columns_out = max(16, min(64, triton.next_power_of_2(channels_out)))
    narrow = max(columns_in, columns_out) <= 32
    many = narrow and side > 1 and positions > 200_000
    programs = 528 if many else 264 if narrow else 132
    block = 128 if narrow else 64
    blocks_in = triton.cdiv(channels_in, columns_in)
    blocks = blocks_in * triton.cdiv(channels_out, columns_out)
    shares = min(triton.cdiv(positions, 4 * block), max(1, programs // (side * blocks)))
    positions_each = triton.cdiv(triton.cdiv(positions, shares), block) * block
    shares = triton.cdiv(positions, positions_each)
    total = torch.empty(channels_out, side, side, channels_in, device=maps.device)
    partial = total.new_empty(shares, total.numel()) if shares > 1 else total
    _weight_gradient_kernel[(shares, side, blocks)](
        maps,
        gradient,
        partial,
        positions,
        positions_each,
        height,
        width,
        out_height,
        out_width,
        channels_in,
        channels_out,
        columns_in,
        columns_out,
        blocks_in,
        side,
        stride,
        block,
        num_warps=2 if narrow else 4,
        num_stages=3,
    )
    if shares > 1:
        grid = (triton.cdiv(total.numel(), 64),)
        _add_up_kernel[grid](partial, total, total.numel(), shares, 32, 64)
    return total
