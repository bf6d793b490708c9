"""Forwards of a step: which images share batch statistics, and what comes of each group."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from distillmatch.networks import separate_statistics


class Group:
    """Images that share batch statistics, in one or several tensors; missing ones are left out."""

    def __init__(self, *images: Tensor | None) -> None:
        self.images = [one for one in images if one is not None and len(one)]

    def __len__(self) -> int:
        return sum(map(len, self.images))


def forward_groups(
    network: nn.Module, groups: Sequence[Group], seen: int, updating: int | None = None
) -> list[Tensor]:
    """Return the logits of each group over the seen classes, by one forward.

    Every group is normalized by its own statistics. The first `updating` groups (default: all)
    update the running ones, in their order. The logits of a group without images have no rows.
    """
    present = [group for group in groups if len(group)]
    updating_present = sum(len(group) > 0 for group in groups[:updating])
    images = [one for group in present for one in group.images]
    sizes = [len(group) for group in present]
    apart = len(present) > 1 or updating_present == 0
    with separate_statistics(network, sizes, updating_present) if apart else nullcontext():
        logits: Tensor = network(torch.cat(images) if len(images) > 1 else images[0])[:, :seen]
    # A split that takes everything would still cost the backward pass.
    parts = iter(torch.split(logits, sizes) if len(sizes) > 1 else [logits])
    return [next(parts) if len(group) else logits[:0] for group in groups]
