"""Convolutions with few channels, by a kernel that reads its maps once.

With 32 channels a library's 3×3 convolution waits for the second-level cache, from which it reads
the maps nine times; ours keeps them in shared memory. With 64 channels and more the library is as
fast or faster. Both were measured: docs/performance.md.
"""

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

from distillmatch.networks.kernels.compiled import load_kernel

SHAPES = {(3, 16), (16, 16), (16, 32), (32, 32)}
"""Channels in and out of the convolutions that are taken."""
WIDTHS = (32, 64)
PIXELS = 256
"""Pixels of the strip that a program multiplies at once: 64 for each of its warps."""
WARPS = 4
PROGRAMS_EACH = 2
"""Programs that a multiprocessor has at a time, bounded by shared memory."""


def takes(maps: Tensor, weight: Tensor, stride: int, *, transposed: bool = False) -> bool:
    """Tell whether the kernel can convolve the maps; transposed, whether it can take back to them.

    `maps` are those that the kernel would read. Weights and maps must be channels-last.
    """
    channels_out, channels_in, side, _ = weight.shape
    height, width = maps.shape[2:]
    return (
        (channels_in, channels_out) in SHAPES
        and not (transposed and channels_in == 3)
        and side == 3
        and stride == 1
        and width in WIDTHS
        and height % (PIXELS // width) == 0
        and maps.dtype == weight.dtype == torch.bfloat16
        and len(maps) > 0
        and _kernel(maps.get_device(), *_channels(weight, transposed), width, transposed)
        is not None
    )


def convolve(maps: Tensor, weight: Tensor, *, transposed: bool = False) -> Tensor:
    """Convolve maps; transposed, take the gradient of a convolution's output to its input."""
    channels_in, channels_out = _channels(weight, transposed)
    images, _, height, width = maps.shape
    result = torch.empty(
        (images, channels_out, height, width),
        dtype=maps.dtype,
        device=maps.device,
        memory_format=torch.channels_last,
    )
    kernel = _kernel(maps.get_device(), channels_in, channels_out, width, transposed)
    strips = images * height * width // PIXELS
    processors = torch.cuda.get_device_properties(maps.device).multi_processor_count
    kernel(
        grid=(min(strips, PROGRAMS_EACH * processors), 1, 1),
        block=(WARPS * 32, 1, 1),
        args=[maps, weight, result, strips, height],
        shared_mem=_shared_bytes(channels_in, channels_out, width, transposed),
        stream=torch.cuda.current_stream(maps.device),
    )
    return result


def _channels(weight: Tensor, transposed: bool) -> tuple[int, int]:
    """Return the channels that the kernel reads and writes."""
    channels_out, channels_in = weight.shape[:2]
    return (channels_out, channels_in) if transposed else (channels_in, channels_out)


@functools.cache
def _kernel(device: int, channels_in: int, channels_out: int, width: int, transposed: bool) -> Any:
    """Return the kernel for a device; where there can be none, None, and say why if it is odd."""
    needed = _shared_bytes(channels_in, channels_out, width, transposed)
    properties: Any = torch.cuda.get_device_properties(device)
    if properties.major < 8 or properties.shared_memory_per_block_optin < needed:
        return None
    constants = {
        "CHANNELS_IN": channels_in,
        "CHANNELS_OUT": channels_out,
        "WIDTH": width,
        "ROWS": PIXELS // width,
        "WARPS": WARPS,
        "TRANSPOSED": int(transposed),
    }
    try:
        with torch.cuda.device(device):
            return load_kernel("convolution.cu", "convolve", constants, needed)
    except (RuntimeError, OSError, AttributeError) as error:
        warnings.warn(
            f"a convolution kernel could not be compiled, cuDNN's is used: {error}", stacklevel=2
        )
        return None


def _shared_bytes(channels_in: int, channels_out: int, width: int, transposed: bool) -> int:
    """Return what the kernel keeps in shared memory: its weights and two strips."""
    depth = -(-channels_in // 16) * 16
    row = (channels_out if transposed else 9 * depth) * 2 + 16
    weights = (9 * depth if transposed else channels_out) * row
    return weights + 2 * (width + 2) * (PIXELS // width + 2) * (depth * 2 + 16)
