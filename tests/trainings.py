"""Trainings of methods in their third task, and what their losses are made of, by loops.

Each loss is asked for as the engine asks: from `Method.trainings`, with what the training's own
score functions say of the batch. The networks have more outputs than classes were seen.
"""

from dataclasses import replace
from typing import Any

import torch
from slow import (
    SIZES,
    TASK,
    Row,
    Rows,
    builder,
    mean_divergence,
    random_batch,
    slow_supervised,
    softmax,
)
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.methods import Batch, Method, TaskInfo, Training, make_method

FIRST = TaskInfo(number=0, sizes=SIZES[:1], last=False, coreset=False)
WITH_CORESET = replace(TASK, coreset=True)
OUTPUTS = 9
COUNTS = [1.0, 2.0, 3.0, 0.0, 59.0, 12.0, 7.0]
"""Labels of each class in a made-up pass; class 3 has none, so that its weight is the cap."""


class LabelCounts:
    """A pass through data that has labels to count and nothing to score."""

    def __init__(self, counts: Row) -> None:
        self.counts = counts

    def score(self, score: Any, over: str, views: int = 1) -> dict[str, Tensor]:
        raise AssertionError("there is nothing to score")

    def note(self, notes: dict[str, Tensor]) -> None:
        raise AssertionError("there is nothing to note")

    def count(self, over: str) -> int:
        raise AssertionError("there are no images to count")

    def labels(self, over: str) -> Tensor:
        raise AssertionError("the labels are counted already")

    def label_counts(self, over: str) -> Tensor:
        return torch.tensor(self.counts, dtype=torch.float64)


def slow_weights(counts: Row) -> Row:
    """Eq. 3 with the release's smoothing and cap."""
    smoothed = [count + 1 for count in counts]
    return [min(10.0, sum(smoothed) / len(smoothed) / count) for count in smoothed]


def slow_label_weights(counts: Row) -> Row:
    """The same among the classes that have labels; the others have the cap."""
    of_present = slow_weights([count for count in counts if count])
    return [of_present.pop(0) if count else 10.0 for count in counts]


def method_of(**options: Any) -> Method:
    """A method in its third task: with frozen models, and all that a detector needs."""
    method = make_method(RunConfig(**options), builder(OUTPUTS))
    method.networks["past"] = method.build("past")
    method.networks["past detector"] = method.build("past detector", "cosine")
    method.values |= {"epsilon": 0.0, "threshold": 0.0}
    return method


def training_of(method: Method, name: str = "classifier", task: TaskInfo = TASK) -> Training:
    (training,) = [one for one in method.trainings(task) if one.name == name]
    return training


def batch_for(training: Training, seed: int = 0, classes: range = range(7)) -> Batch:
    """The views that a training asked for; the labels are all of some classes, in turn."""
    drawn = random_batch(seed, labeled=8, unlabeled=6)
    strong_images = random_batch(seed + 1, labeled=8).images if training.strong_labeled else None
    unlabeled = drawn.unlabeled if training.unlabeled else drawn.unlabeled[:0]
    with torch.no_grad():
        return Batch(
            images=drawn.images,
            labels=torch.tensor([classes[n % len(classes)] for n in range(8)]),
            unlabeled=unlabeled,
            strong=drawn.strong if training.strong else None,
            strong_images=strong_images,
            of_images=training.score_images(drawn.images) if training.score_images else {},
            of_unlabeled=training.score_unlabeled(unlabeled) if training.score_unlabeled else {},
        )


def loss_of(training: Training, batch: Batch) -> float:
    """The loss in training mode, in which the images of one forward depend on each other."""
    training.network.train(training.parameters == "all")
    return float(training.loss(batch).detach())


def rows(network: nn.Module, *images: Tensor, seen: int = 7) -> Rows:
    """Logits of images that go through the network together, cut to the seen classes."""
    with torch.no_grad():
        cut: Rows = network(torch.cat(images))[:, :seen].tolist()
    return cut


def mean_supervised(batch: Batch, labeled: Rows, weights: Row | None = None) -> float:
    return slow_supervised(batch, weights or [1.0] * 7, labeled) / len(labeled)


def slow_distillation(teacher: Rows, student: Rows, shares: str, temperature: float) -> float:
    """Eq. 1 for the two past tasks, of two and three classes of the seven seen."""
    small = mean_divergence(teacher, student, 0, 2, temperature)
    large = mean_divergence(teacher, student, 2, 5, temperature)
    return (small + large) / 2 if shares == "equal" else (2 * small + 3 * large) / 7


def some_of(weak: Rows, threshold: float) -> bool:
    """Whether some weak views are confident and some are not."""
    return 0 < sum(max(softmax(row)) >= threshold for row in weak) < len(weak)
