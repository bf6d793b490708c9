"""Parts that several methods are made of."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.losses import (
    class_weights,
    per_task_distillation,
    weighted_cross_entropy_sum,
)
from distillmatch.methods.forwards import Views, forward_views, labeled_alone
from distillmatch.methods.method import (
    Batch,
    ImageSet,
    Method,
    Passes,
    ScoreFunction,
    Scores,
    TaskInfo,
    Training,
)
from distillmatch.methods.schedule import fine_tuning_schedule
from distillmatch.networks import MOST_PARTS, separate_statistics

HIGH_RATE = 0.1
"""Learning rate of DM, Base and the bounds; with a coreset, of every method."""
LOW_RATE = 0.005
"""Learning rate of GD, DR and E2E without a coreset."""


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

    def forward(self, batch: Batch, task: TaskInfo) -> Views:
        """Return the classifier's logits of a step, with labelled images normalized as configured.

        Where they are normalized apart, what is distilled still is of those beside unlabelled ones.
        """
        alone = labeled_alone(self.config, batch, task)
        return forward_views(self.classifier, batch, task.seen, alone=alone)

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
    statistics; where these many do not divide the images, by lots of nearly that size. As many lots
    share a forward as our kernels take parts. A single image has no statistics of its own.
    """
    by_running = ("running", "batch") if labeled else ("running",)
    if config.past_statistics in by_running or len(images) < 2:
        return ask(images)
    size = config.batch if labeled else config.unlabeled_batch
    lots = [len(lot) for lot in images.tensor_split(max(1, len(images) // size))]
    shared = [lots[n : n + MOST_PARTS] for n in range(0, len(lots), MOST_PARTS)]
    answers = []
    together = torch.split(images, list(map(sum, shared)))
    for some, sizes in zip(together, shared, strict=True):
        with _normalizing_by_lots(networks, sizes):
            answers.append(ask(some))
    return {name: torch.cat([answer[name] for answer in answers]) for name in answers[0]}


@contextmanager
def _normalizing_by_lots(networks: Sequence[nn.Module], sizes: Sequence[int]) -> Iterator[None]:
    """Put frozen networks into training mode, in which nothing about them changes.

    The images that each is given are lots of these sizes.
    """
    with ExitStack() as unchanged:
        for network in networks:
            unchanged.enter_context(separate_statistics(network, sizes, moving=0))
            unchanged.callback(network.eval)
            network.train()
        yield


def baseline_rate(config: RunConfig) -> float:
    """Return the paper's learning rate for E2E, DR and GD."""
    return HIGH_RATE if config.coreset else LOW_RATE


def meets_unlabeled(config: RunConfig, task: TaskInfo) -> bool:
    """Tell whether the steps of E2E's, DR's and GD's classifier take unlabelled images.

    In the first task there is nothing to distil, but labelled images may be normalized with them.
    """
    return task.past > 0 or config.new_task_statistics == "together"


def past_logits_of_all(batch: Batch, name: str = "past") -> Tensor:
    """Return what a frozen model said of the labelled and then of the unlabelled views."""
    return torch.cat([batch.of_images[name], batch.of_unlabeled[name]])


def distils_in_step(config: RunConfig) -> bool:
    """Tell whether what DM and Base distil is asked in the step itself, and not before."""
    return config.past_statistics == "step"


def past_logits_to_distil(
    method: Method, batch: Batch, teacher: str = "past", answers: str = "past"
) -> Tensor:
    """Return what the frozen network `teacher` says of all weak views, normalized as configured.

    It was asked before, and its `answers` come with the batch. By `step` it is asked here, and
    normalizes all of them together, as the network that learns does: in the first step of a task,
    where the two are the same, there is nothing to distil.
    """
    if not distils_in_step(method.config):
        return past_logits_of_all(batch, answers)
    frozen, images = method.networks[teacher], torch.cat([batch.images, batch.unlabeled])
    with torch.no_grad(), _normalizing_by_lots([frozen], [len(images)]):
        logits: Tensor = frozen(images)
    return logits


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
