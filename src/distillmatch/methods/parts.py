"""Parts that several methods are made of."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from distillmatch.config import RunConfig
from distillmatch.config.run import StrongStatistics
from distillmatch.losses import (
    class_weights,
    per_task_distillation,
    weighted_cross_entropy_sum,
)
from distillmatch.methods.method import (
    Batch,
    ImageSet,
    Method,
    Passes,
    ScoreFunction,
    Scores,
    TaskInfo,
    Training,
    no_rows,
)
from distillmatch.methods.schedule import fine_tuning_schedule
from distillmatch.networks import frozen_statistics, separate_statistics

HIGH_RATE = 0.1
"""Learning rate of DM, Base and the bounds; with a coreset, of every method."""
LOW_RATE = 0.005
"""Learning rate of GD, DR and E2E without a coreset."""
LabelLoss = Callable[[Tensor, Tensor], Tensor]
"""A loss of logits and labels."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy of a batch."""
    return functional.cross_entropy(logits, labels)


class KeepsPast(Method):
    """A method that keeps the classifier of the last task, to ask it while the next is learned.

    `asked` names the frozen networks whose logits come with every batch.
    """

    asked: ClassVar[tuple[str, ...]] = ("past",)

    def ask_past(self, images: Tensor) -> Scores:
        """Return the logits of the frozen networks."""
        return {name: self.networks[name](images) for name in self.asked}

    def ask_about_labels(self, images: Tensor) -> Scores:
        """Ask the last classifier about labelled images, normalized as configured."""
        past = [self.networks["past"]]
        return by_past_statistics(self.config, self.ask_past, images, past, labeled=True)

    def ask_about_unlabeled(self, images: Tensor) -> Scores:
        """Ask the last classifier about unlabelled images, normalized as configured."""
        return by_past_statistics(self.config, self.ask_past, images, [self.networks["past"]])

    def asking(self, task: TaskInfo) -> ScoreFunction | None:
        """Return what asks the frozen networks in a task: in the first one there is nothing to ask.

        A task that only brings more images of known classes has no teacher, so that is not asked.
        """
        if not task.past:
            return None
        return self.ask_past if task.new else lambda images: {"past": self.networks["past"](images)}

    def supervised_loss(
        self,
        batch: Batch,
        task: TaskInfo,
        weak: Tensor,
        strong: Tensor | None,
        loss: LabelLoss = cross_entropy,
    ) -> Tensor:
        """Return the classifier's loss of labelled images: mean cross entropy unless one is given.

        `weak` are the logits of all weak views, or of labelled images alone; `strong` those of
        strong views of labelled images, where these are learned by too.
        """
        logits = supervised_logits(self.config, self.classifier, batch, task, weak)
        return over_views(lambda logits: loss(logits, batch.labels), logits, strong)

    def end_task(self, task: TaskInfo) -> None:
        """Keep the classifier."""
        self.frozen_copy("past", of="classifier")


def by_past_statistics(
    config: RunConfig,
    ask: ScoreFunction,
    images: Tensor,
    networks: Sequence[nn.Module],
    *,
    labeled: bool = False,
) -> Scores:
    """Ask frozen networks about unlabelled images, or labelled ones, normalized as configured.

    By `batch`, as many images as a step takes are asked about at once and normalized by their own
    statistics; where these many do not divide the images, by lots of nearly that size. A single
    image has no statistics of its own.
    """
    by_batch = ("all-batches",) if labeled else ("batch", "all-batches")
    if config.past_statistics not in by_batch or len(images) < 2:
        return ask(images)
    size = config.batch if labeled else config.unlabeled_batch
    lots = images.tensor_split(max(1, len(images) // size))
    with _normalizing_by_batch(networks):
        answers = [ask(lot) for lot in lots]
    return {name: torch.cat([answer[name] for answer in answers]) for name in answers[0]}


@contextmanager
def _normalizing_by_batch(networks: Sequence[nn.Module]) -> Iterator[None]:
    """Put frozen networks into training mode, in which nothing about them changes."""
    with ExitStack() as unchanged:
        for network in networks:
            unchanged.enter_context(frozen_statistics(network))
            unchanged.callback(network.eval)
            network.train()
        yield


def baseline_rate(config: RunConfig) -> float:
    """Return the paper's learning rate for E2E, DR and GD."""
    return HIGH_RATE if config.coreset else LOW_RATE


def forward_weak(network: nn.Module, batch: Batch, seen: int) -> Tensor:
    """Return the seen classes' logits of the labelled and then of the unlabelled weak views.

    All go through the network together, so that its statistics are those of both.
    """
    logits: Tensor = network(torch.cat([batch.images, batch.unlabeled]))[:, :seen]
    return logits


def first_rows(rows: Tensor, count: int) -> Tensor:
    """Return the first so many rows; a cut that takes all would still cost the backward pass."""
    return rows if count == len(rows) else rows[:count]


def meets_unlabeled(config: RunConfig, task: TaskInfo) -> bool:
    """Tell whether the steps of E2E's, DR's and GD's classifier take unlabelled images.

    In the first task there is nothing to distil, but labelled images may be normalized with them.
    """
    return task.past > 0 or config.new_task_statistics == "together"


def supervised_logits(
    config: RunConfig, network: nn.Module, batch: Batch, task: TaskInfo, weak: Tensor
) -> Tensor:
    """Return the logits that the cross entropy of labelled images is taken of.

    They are the first of those given, of a forward with the unlabelled images; or, where labelled
    images are normalized apart, those of a second forward without, which moves the running
    statistics too. In the first task there is one forward.
    """
    if config.labeled_statistics == "together" or not task.past or no_rows(batch.unlabeled):
        return first_rows(weak, len(batch.images))
    alone: Tensor = network(batch.images)[:, : weak.shape[1]]
    return alone


class Views(NamedTuple):
    """Logits of a step's views: all weak ones, labelled ones first, and the strong ones.

    `unlabeled` and `strong` are what eq. 4 compares, `strong_images` those of labelled images.
    """

    weak: Tensor
    unlabeled: Tensor
    strong: Tensor | None = None
    strong_images: Tensor | None = None


def weak_alone(batch: Batch, weak: Tensor) -> Views:
    """Return the logits of a step that takes no strong views."""
    return Views(weak, weak[len(batch.images) :])


def forward_views(
    network: nn.Module, batch: Batch, seen: int, statistics: StrongStatistics = "apart"
) -> Views:
    """Return the seen classes' logits of the weak and the strong views.

    All go through the network together. With `statistics` `apart` the strong views are normalized
    by themselves and do not move its running statistics, which are for images as they are met at
    test time; `together`, they are normalized with all others and move them too. `unlabeled`, they
    go through it beside the unlabelled weak views, and then all weak views once more without them.
    """
    given = {"strong": batch.strong, "strong_images": batch.strong_images}
    views = {name: one for name, one in given.items() if one is not None and not no_rows(one)}
    if not views:
        return weak_alone(batch, forward_weak(network, batch, seen))
    beside = [batch.unlabeled] if statistics == "unlabeled" else [batch.images, batch.unlabeled]
    count = sum(map(len, beside))
    with separate_statistics(network, count) if statistics == "apart" else nullcontext():
        logits = network(torch.cat([*beside, *views.values()]))[:, :seen]
    weak, *cut = logits.split([count, *map(len, views.values())])
    strong = dict(zip(views, cut, strict=True))
    if statistics == "unlabeled":
        return Views(forward_weak(network, batch, seen), weak, **strong)
    return Views(weak, weak[len(batch.images) :], **strong)


def over_views(loss: Callable[[Tensor], Tensor], weak: Tensor, strong: Tensor | None) -> Tensor:
    """Return a loss of the logits of weak views, or its mean with that of strong ones if given."""
    return loss(weak) if strong is None else (loss(weak) + loss(strong)) / 2


def label_loss(network: nn.Module, batch: Batch, seen: int) -> Tensor:
    """Return the mean cross entropy of labelled images, by strong views too where there are any."""

    def loss(logits: Tensor) -> Tensor:
        return cross_entropy(logits, batch.labels)

    if batch.strong_images is None:
        return loss(network(batch.images)[:, :seen])
    views = forward_views(network, batch, seen)
    return over_views(loss, first_rows(views.weak, len(batch.labels)), views.strong_images)


def past_logits_of_all(batch: Batch, name: str = "past") -> Tensor:
    """Return what a frozen model said of the labelled and then of the unlabelled views."""
    return torch.cat([batch.of_images[name], batch.of_unlabeled[name]])


def local_distillation(
    config: RunConfig, task: TaskInfo, teacher: Tensor, student: Tensor
) -> Tensor:
    """Distil each past task's classes as configured, eq. 1."""
    return per_task_distillation(
        teacher, student, task.sizes[:-1], config.temperature, config.distillation_shares
    )


def past_factor(config: RunConfig) -> float:
    """Return what E2E and DR multiply their distillation of the past by, T² if that is asked."""
    squared = config.distillation_scale == "temperature-squared"
    return config.temperature**2 if squared else 1.0


@dataclass
class LabelWeights:
    """Class weights by label counts, known once a training begins.

    They are the inverse frequencies among the classes that have images, so that the mean weight of
    an image is 1. A class without any does not count: without a coreset these are all past classes,
    and the new ones would weigh no more than their share of the classes seen.
    """

    config: RunConfig
    values: Tensor | None = None
    over: ImageSet = "labeled"
    balanced: bool = True

    def count(self, passes: Passes) -> None:
        """Count the labels of the images trained on, before the training begins.

        Where class balancing is off, every class weighs 1.
        """
        counts = passes.label_counts(self.over)
        self.values = torch.ones_like(counts)
        if self.balanced and self.config.class_balancing:
            smoothing, cap = self.config.count_smoothing, self.config.weight_cap
            present = counts > 0
            self.values = torch.full_like(counts, cap)
            self.values[present] = class_weights(counts[present], None, smoothing, cap)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the balanced cross entropy, summed over the batch."""
        return weighted_cross_entropy_sum(logits, labels, self.values)


def weights_before_fine_tuning(config: RunConfig, task: TaskInfo) -> LabelWeights:
    """Return the class weights of E2E's and GD's main training.

    Balanced, a few stored images outweigh all that are new.
    """
    balanced = config.balanced_trainings == "all" or not is_fine_tuned(config, task)
    return LabelWeights(config, balanced=balanced)


def is_fine_tuned(config: RunConfig, task: TaskInfo) -> bool:
    """Tell whether a task ends with fine-tuning: where there is a coreset, and time for it."""
    return task.coreset and fine_tuning_schedule(config, HIGH_RATE).epochs > 0


def fine_tuning(
    config: RunConfig,
    task: TaskInfo,
    network: nn.Module,
    rate: float,
    *,
    whole: bool = False,
    loss: Callable[[Batch, LabelWeights], Tensor] | None = None,
    score_unlabeled: ScoreFunction | None = None,
) -> list[Training]:
    """Return the class-balanced fine-tuning that ends a task, where there is any.

    Only the last layer is trained, unless `whole`. Labels alone are learned, unless unlabelled
    images are to take part and the method gives the `loss` of a batch with both, and asks about the
    latter by `score_unlabeled`.
    """
    if not is_fine_tuned(config, task):
        return []
    both = config.fine_tuning_data == "labeled-and-coreset"
    data: ImageSet = "labeled" if both else "coreset"
    weights = LabelWeights(config, over=data)
    of_both = loss if config.fine_tuning_unlabeled else None

    def of_batch(batch: Batch) -> Tensor:
        if of_both is not None:
            return of_both(batch, weights)
        logits = network(batch.images)[:, : task.seen]
        return weights.loss(logits, batch.labels) / len(batch.labels)

    return [
        Training(
            name="fine-tuning",
            network=network,
            loss=of_batch,
            schedule=fine_tuning_schedule(config, rate),
            labeled=data,
            unlabeled=of_both is not None,
            parameters="all" if whole else "head",
            head_statistics=config.fine_tuning_statistics,
            score_unlabeled=score_unlabeled if of_both is not None else None,
            before=weights.count,
        )
    ]
