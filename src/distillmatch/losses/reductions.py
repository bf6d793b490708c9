"""Sums and means over the rows of a batch that count."""

import torch
from torch import Tensor


def masked_sum(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Return the sum of the entries whose mask is true; of all without a mask."""
    return rows.sum() if mask is None else torch.where(mask, rows, 0).sum()


def masked_mean(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of the entries whose mask is true, 0 where none is; of all without a mask."""
    return rows.mean() if mask is None else masked_sum(rows, mask) / mask.sum().clamp(min=1)
