"""The batch of a step and the logits of its views: which images share batch statistics.

Every group of images is normalized by its own statistics, and all groups go through the network
together. Which groups there are is decided here, for all methods.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from distillmatch.errors import ConfigError
from distillmatch.networks import by_batch_statistics, separate_statistics


@dataclass(frozen=True)
class Batch:
    """What one step learns from.

    `images` are weak views of labeled images, `labels` their classes; `unlabeled` are weak views of
    unlabeled images, if there are any. `strong` and `strong_images` are strong views of the same,
    if the training has them. `labeled_outputs` and `unlabeled_outputs` are what the training's
    `frozen_labeled` and `frozen_unlabeled` return. `truth` has the true classes of unlabeled images
    for methods with `needs_truth` alone.
    """

    images: Tensor
    labels: Tensor
    unlabeled: Tensor
    strong: Tensor | None = None
    strong_images: Tensor | None = None
    labeled_outputs: Any = None
    unlabeled_outputs: Any = None
    truth: Tensor | None = None

    @property
    def past(self) -> Tensor:
        """The past classifier's logits of labeled and then of unlabeled images."""
        if self.labeled_outputs is None or self.unlabeled_outputs is None:
            raise ConfigError(
                "batch.past needs a past classifier: set keeps_past = True, and use it where "
                "task.past is not 0"
            )
        return torch.cat([self.labeled_outputs.past, self.unlabeled_outputs.past])


class Logits(NamedTuple):
    """Logits of a step's views over the classes seen so far; no rows where there are no views."""

    weak: Tensor
    """Weak views of labeled and then of unlabeled images, which share batch statistics."""
    labeled: Tensor
    """Weak views of labeled images, as labels are learned."""
    pseudo_labeled: Tensor
    """Weak views of unlabeled images, as pseudo-labels are learned."""
    unlabeled: Tensor
    """Weak views of unlabeled images, with which strong views should be consistent."""
    strong: Tensor
    """Strong views of unlabeled images."""
    strong_labeled: Tensor
    """Strong views of labeled images."""


def joint_logits(network: nn.Module, batch: Batch, seen: int) -> Logits:
    """Return logits where weak views share batch statistics, and strong views share theirs.

    Strong views do not update the running statistics, which are for images as at test time.
    """
    groups = [batch.images, batch.unlabeled], [batch.strong, batch.strong_images]
    weak, strong = forward_groups(network, groups, seen, updating=1)
    labeled, unlabeled = _split(weak, len(batch.images))
    return Logits(weak, labeled, unlabeled, unlabeled, *_split(strong, _count(batch.strong)))


def separate_logits(network: nn.Module, batch: Batch, seen: int) -> Logits:
    """Return logits where labels are learned from a group of their own: E2E, DR and GD by `paper`.

    What is distilled is still a group of labeled and unlabeled images together.
    """
    groups = [batch.images, batch.unlabeled], [batch.images], [batch.strong_images]
    weak, labeled, strong_labeled = forward_groups(network, groups, seen, updating=2)
    unlabeled = weak[len(batch.images) :]
    return Logits(weak, labeled, unlabeled, unlabeled, weak[:0], strong_labeled)


def consistent_logits(
    network: nn.Module,
    batch: Batch,
    seen: int,
    alone: tuple[Tensor, int] | None = None,
    distilled: bool = True,
) -> Logits:
    """Return logits where strong views share batch statistics with the unlabeled images: DM.

    Labels are learned from the group of labeled and unlabeled images that is distilled too. If
    `alone` is given, they are learned from a group of their own with the accepted images: `alone`
    has a mask of these and the number that is expected. A step has a fixed shape, so
    labeled images are repeated where fewer are accepted, and those beyond the expected number are
    learned with the other unlabeled images. Without distillation that group, the last, does not
    update the running statistics.
    """
    strong = [one for one in (batch.strong, batch.strong_images) if _count(one)]
    agreeing = [batch.unlabeled, *strong] if strong else []
    together = [batch.images, batch.unlabeled]
    labels, unlabeled = len(batch.images), len(batch.unlabeled)
    if alone is None:
        first, weak = forward_groups(network, [agreeing, together], seen)
        labeled, pseudo_labeled = _split(weak, labels)
    else:
        accepted, expected = alone
        chosen = accepted.byte().argsort(descending=True, stable=True)[:expected]
        repeated = torch.arange(expected, device=chosen.device) % labels
        mask = accepted[chosen].view(-1, 1, 1, 1)
        beside = torch.where(mask, batch.unlabeled[chosen], batch.images[repeated])
        groups = agreeing, [batch.images, beside], together
        updating = 3 if distilled else 2
        first, learned, weak = forward_groups(network, groups, seen, updating)
        labeled, of_beside = _split(learned, labels)
        pseudo_labeled = weak[labels:].index_copy(0, chosen, of_beside)
    guiding, others = first[:unlabeled], first[unlabeled:]
    return Logits(weak, labeled, pseudo_labeled, guiding, *_split(others, _count(batch.strong)))


def frozen_logits(network: nn.Module, images: Sequence[Tensor]) -> Tensor:
    """Return the logits of a frozen network that normalizes by the images it is given."""
    together = torch.cat(list(images))
    with torch.no_grad(), by_batch_statistics([network], [len(together)]):
        logits: Tensor = network(together)
    return logits


def forward_groups(
    network: nn.Module,
    groups: Sequence[Sequence[Tensor | None]],
    seen: int | None,
    updating: int | None = None,
) -> list[Tensor]:
    """Return the logits of each group of images over the seen classes, by one forward.

    Without `seen` these are features instead. Every group is normalized by its own statistics. The
    first `updating` groups (default: all) update the running ones, in their order. A group without
    images has no rows.
    """
    counts = [sum(map(_count, group)) for group in groups]
    updating_present = sum(count > 0 for count in counts[:updating])
    images = [one for group in groups for one in group if one is not None and len(one)]
    together = torch.cat(images) if len(images) > 1 else images[0]
    sizes = [count for count in counts if count]
    apart = len(sizes) > 1 or updating_present == 0
    with separate_statistics(network, sizes, updating_present) if apart else nullcontext():
        run: Any = network if seen is not None else network.features
        rows: Tensor = run(together) if seen is None else run(together)[:, :seen]
    # A split that takes everything would still cost the backward pass.
    parts = iter(torch.split(rows, sizes) if len(sizes) > 1 else [rows])
    return [next(parts) if count else rows[:0] for count in counts]


def _count(images: Tensor | None) -> int:
    return 0 if images is None else len(images)


def _split(rows: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Return so many rows and the rest."""
    if first == len(rows):
        return rows, rows[:0]
    of_first, rest = torch.split(rows, [first, len(rows) - first])
    return of_first, rest
