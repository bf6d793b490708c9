"""What the processes of one run tell each other in the midst of a step: sums and gathered rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed

from distillmatch.errors import TrainingError

LOST = (
    "another process of this run has ended; the same command continues from the last checkpoint, "
    "if there is one"
)


def gather(rows: Tensor) -> Tensor:
    """Return the rows of all processes, stacked by process; each must have as many.

    It is differentiable: a gradient is the sum of what all processes make of these rows.
    """
    gathered: Tensor = _Gather.apply(rows)  # type: ignore[no-untyped-call]
    return gathered


def add_up(numbers: Tensor) -> Tensor:
    """Replace numbers, in place, by their sums over all processes, and return them."""
    with contact(numbers):
        distributed.all_reduce(numbers)
    return numbers


@contextmanager
def contact(exchanged: Tensor) -> Iterator[None]:
    """Say in one sentence that a process is gone, where that is noticed: between processors."""
    try:
        yield
    except RuntimeError as error:
        if exchanged.is_cuda:  # a capture that fails is no loss of contact
            raise
        raise TrainingError(LOST) from error


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        gathered = rows.new_empty((distributed.get_world_size(), *rows.shape))
        with contact(rows):
            distributed.all_gather(list(gathered.unbind(0)), rows.contiguous())
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed = add_up(gradients[0].clone(memory_format=torch.contiguous_format))
        return summed[distributed.get_rank()]
