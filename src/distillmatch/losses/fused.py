"""Which logits the kernels of this package take; all others are left to torch."""

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

HAS_TRITON = find_spec("triton") is not None
WIDEST = 4096
"""The most columns of a row, each task's rounded up to the next power of two."""
LEAST_WIDTH, LEAST_GROUPS, LEAST_IN_GROUP = 128, 16, 16
"""What a kernel is made for at least: columns of a row, groups of them, columns of a group."""


def takes(logits: Tensor, *others: Tensor) -> bool:
    """Tell whether all are rows of float32 on the current CUDA device, equally many, not none.

    A kernel reads a row's columns side by side; the rows may lie apart, as in a slice.
    """
    return _on_current_device(logits) and all(
        rows.ndim == 2
        and rows.dtype == torch.float32
        and rows.device == logits.device
        and len(rows) == len(logits)
        and 0 < rows.shape[1] <= WIDEST
        and rows.numel() > 0
        and rows.stride(1) == 1
        for rows in (logits, *others)
    )


def takes_rows(logits: Tensor, *vectors: Tensor | None) -> bool:
    """Tell whether each vector given holds one entry for each row, on the logits' device."""
    return all(
        vector is None or (vector.shape == logits.shape[:1] and vector.device == logits.device)
        for vector in vectors
    )


def takes_labels(*labels: Tensor) -> bool:
    """Tell whether all are vectors of labels on the current CUDA device."""
    return all(
        _on_current_device(some) and some.ndim == 1 and some.dtype == torch.int64 for some in labels
    )


def takes_losses(count: Tensor, *losses: Tensor | None) -> bool:
    """Tell whether the losses given are single float32 numbers on the current CUDA device."""
    return count.ndim == 0 and all(
        loss is None
        or (
            _on_current_device(loss)
            and loss.device == count.device
            and loss.ndim == 0
            and loss.dtype == torch.float32
        )
        for loss in losses
    )


def _on_current_device(tensor: Tensor) -> bool:
    return HAS_TRITON and tensor.is_cuda and tensor.device.index == torch.cuda.current_device()


def padded(sizes: Sequence[int]) -> tuple[int, int]:
    """Return the number of groups and their largest size, rounded up to powers of two.

    They are never small: a kernel is compiled for each, and a stream has groups of many sizes.
    """
    if len(sizes) == 1:
        return 1, padded_width(sizes[0])
    return max(LEAST_GROUPS, _power_of_two(len(sizes))), max(
        LEAST_IN_GROUP, _power_of_two(max(sizes))
    )


def padded_width(columns: int) -> int:
    """Return the columns of a row likewise."""
    return max(LEAST_WIDTH, _power_of_two(columns))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
