"""The forward of a step: all its views at once, and the loss of its labels by their logits."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from distillmatch.config import RunConfig
from distillmatch.config.run import StrongStatistics
from distillmatch.methods.method import Batch, TaskInfo, no_rows
from distillmatch.networks import separate_statistics

LabelLoss = Callable[[Tensor, Tensor], Tensor]
"""A loss of logits and labels."""
Part = dict[str, Sequence[Tensor]]
"""Images that are normalized together, by the names that their logits get."""


class Views(NamedTuple):
    """Logits of a step's views: all weak ones, labelled ones first, and the strong ones.

    `labeled` are the first of the weak ones. `unlabeled` and `strong` are what eq. 4 compares,
    `strong_images` those of labelled images. `alone` are those of the images that were normalized
    by themselves besides.
    """

    weak: Tensor
    labeled: Tensor
    unlabeled: Tensor
    strong: Tensor | None = None
    strong_images: Tensor | None = None
    alone: Tensor | None = None


def forward_views(
    network: nn.Module,
    batch: Batch,
    seen: int,
    statistics: StrongStatistics = "apart",
    alone: Sequence[Tensor] = (),
) -> Views:
    """Return the seen classes' logits of the weak and the strong views, by a single forward.

    With `statistics` `apart` the strong views are normalized by themselves and do not move the
    running statistics, which are for images as they are met at test time; `together`, they are
    normalized with all others and move them too. `unlabeled`, they are normalized with the
    unlabelled weak views, and all weak views once more without them. The images that are to stand
    `alone` are normalized without any others, and move the running statistics after the weak views.
    """
    given = {"strong": batch.strong, "strong_images": batch.strong_images}
    strong: Part = {
        name: [one] for name, one in given.items() if one is not None and not no_rows(one)
    }
    beside = [] if no_rows(batch.unlabeled) else [batch.unlabeled]
    weak: Part = {"weak": [batch.images, *beside]}
    by_themselves: Part = {"alone": alone} if alone else {}
    moving, still = [weak, by_themselves], strong
    if strong and statistics == "together":
        moving, still = [weak | strong, by_themselves], {}
    elif strong and statistics == "unlabeled":
        moving, still = [{"unlabeled": [batch.unlabeled]} | strong, weak, by_themselves], {}
    logits = forward_parts(network, moving, still, seen)
    labeled, unlabeled = torch.split(logits["weak"], [len(batch.images), len(batch.unlabeled)])
    if no_rows(batch.unlabeled):  # a cut that takes all would still cost the backward pass
        labeled = logits["weak"]
    return Views(**{"labeled": labeled, "unlabeled": unlabeled, **logits})


def forward_parts(
    network: nn.Module, moving: Sequence[Part], still: Part, seen: int
) -> dict[str, Tensor]:
    """Return the seen classes' logits of several parts, each of which is normalized by itself.

    One forward does for one of each: the parts that are `moving` move the running statistics in
    their order, and the one that is `still` does not. Those without any images are left out.
    """
    moving = [part for part in moving if part]
    parts = [*moving, still] if still else moving
    images = [one for part in parts for some in part.values() for one in some]
    counts = {name: sum(map(len, some)) for part in parts for name, some in part.items()}
    sizes = [sum(counts[name] for name in part) for part in parts]
    apart = len(parts) > 1
    with separate_statistics(network, sizes, len(moving)) if apart else nullcontext():
        logits: Tensor = network(torch.cat(images) if len(images) > 1 else images[0])[:, :seen]
    cut = torch.split(logits, list(counts.values())) if len(counts) > 1 else [logits]
    return dict(zip(counts, cut, strict=True))


def first_rows(rows: Tensor, count: int) -> Tensor:
    """Return the first so many rows; a cut that takes all would still cost the backward pass."""
    return rows if count == len(rows) else rows[:count]


def labeled_alone(config: RunConfig, batch: Batch, task: TaskInfo) -> list[Tensor]:
    """Return the labelled images where they are to be normalized without unlabelled ones, or none.

    In the first task they never are, as there is nothing to distil.
    """
    apart = config.labeled_statistics == "apart" and task.past > 0
    return [batch.images] if apart and not no_rows(batch.unlabeled) else []


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy of a batch."""
    return functional.cross_entropy(logits, labels)


def supervised_loss(batch: Batch, views: Views, loss: LabelLoss = cross_entropy) -> Tensor:
    """Return the loss of labelled images: mean cross entropy unless one is given.

    It is that of their weak views, of those that stand alone where there are any, and of strong
    views where labels are learned by these too.
    """
    weak = views.labeled if views.alone is None else views.alone
    return over_views(lambda logits: loss(logits, batch.labels), weak, views.strong_images)


def over_views(loss: Callable[[Tensor], Tensor], weak: Tensor, strong: Tensor | None) -> Tensor:
    """Return a loss of the logits of weak views, or its mean with that of strong ones if given."""
    return loss(weak) if strong is None else (loss(weak) + loss(strong)) / 2
