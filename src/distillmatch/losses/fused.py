"""Which logits the kernels of this package take; all others are left to torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from distillmatch.losses import kernels


def takes(logits: Tensor, *others: Tensor) -> bool:
    """Tell whether all are rows of float32 on the current CUDA device, equally many, not none.

    A kernel reads a row's columns side by side; the rows may lie apart, as in a slice.
    """
    return _on_current_device(logits) and all(
        rows.ndim == 2
        and rows.dtype == torch.float32
        and rows.device == logits.device
        and len(rows) == len(logits)
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


def takes_groups(sizes: Sequence[int]) -> bool:
    """Tell whether columns may be in groups of so many: one size after another, not many others."""
    return len(kernels.runs_of(sizes)) <= kernels.MOST_RUNS


def takes_labels(*labels: Tensor) -> bool:
    """Tell whether all are vectors of labels on the current CUDA device."""
    return all(
        _on_current_device(some) and some.ndim == 1 and some.dtype == torch.int64 for some in labels
    )


def takes_losses(count: Tensor, *losses: Tensor | None) -> bool:
    """Tell whether count and losses given are single numbers on the current CUDA device.

    They are to be int64 and float32.
    """
    return (count.ndim, count.dtype) == (0, torch.int64) and all(
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
    return (
        tensor.is_cuda
        and tensor.device.index == torch.cuda.current_device()
        and kernels.available(tensor.device.index)
    )
