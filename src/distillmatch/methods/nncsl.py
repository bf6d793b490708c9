"""CSL and NNCSL (Kang et al. 2023): soft nearest neighbors among labeled images, the supports.

The equations are the publication's; what it leaves open is decided here, and said in the docs.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from distillmatch import losses
from distillmatch.config import AS_WRITTEN, MethodOptions, Recipe, RunConfig
from distillmatch.config.base import NotNegative, Switch
from distillmatch.errors import ConfigError
from distillmatch.methods.forward import Batch, forward_groups
from distillmatch.methods.method import Lars, Method, NetworkBuilder, TaskInfo, Training
from distillmatch.methods.schedule import Schedule

PER_CLASS = 3  # supports of each class in a step; of each there are two views
SMOOTHING = 0.1
TEMPERATURE = 0.1  # of the softmax over supports
SHARPENING = 0.25  # the temperature by which the target of a view is sharpened
HEAD_WEIGHT = 0.005  # of the head's cross entropy
RATE, FIRST_RATE, LAST_RATE = 1.2, 0.08, 0.032
LARS = Lars(weight_decay=1e-5, head_rate=0.1)  # the head's rate rises to 0.12
WARM_UP = 0.04  # the share of the epochs in which the rate rises: 10 of 250
RUN_OPTIONS = ("optimizer", "schedule", "weight_decay")  # of the run, which LARS stands in for


class Views(NamedTuple):
    """Features of a step's images, of both views of each, and the labels of the supports."""

    supports: Tensor
    labels: Tensor
    queries: Tensor
    """Weak views of unlabeled images, and then strong views of the same."""

    def neighbors(self, classes: Sequence[int]) -> Tensor:
        """Return SNN(q) of each query over the supports of some classes."""
        given = self.queries, self.supports, self.labels
        return losses.soft_nearest_neighbors(*given, classes, TEMPERATURE, SMOOTHING)


class SoftNearestNeighbors(Method):
    """CSL: two views of an image agree on their nearest supports; a linear head predicts."""

    class Options(MethodOptions):
        """CSL's own options."""

        lars: Switch = Field(
            True,
            description="LARS with warm-up and a cosine, as published; false: the run's optimizer",
        )

    strong_views: ClassVar[bool] = True
    fixed_recipe: ClassVar[Recipe | None] = AS_WRITTEN

    def __init__(self, config: RunConfig, build: NetworkBuilder) -> None:
        super().__init__(config, build)
        for key in RUN_OPTIONS if self.options.lars else ():
            if getattr(config, key) != RunConfig.model_fields[key].default:
                raise ConfigError(
                    f"{key} is {getattr(config, key)!r}, and method '{config.method}' brings its "
                    "own with LARS: add --lars false"
                )

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the classifier by epochs over the unlabeled images, with two views of all."""
        changes: dict[str, Any] = {"frozen_labeled": None, "frozen_unlabeled": None}
        if self.options.lars:
            changes |= {"schedule": self.schedule, "optimizer": LARS}
        changes |= {"per_class": PER_CLASS, "epoch_of": "unlabeled", "strong_labeled": True}
        return [self.training(task, **changes)]

    @property
    def schedule(self) -> Schedule:
        """The published rates, in proportion to the epochs and to another rate if one is given."""
        epochs, scale = self.config.epochs, (self.config.learning_rate or RATE) / RATE
        rate, first, last = (one * scale for one in (RATE, FIRST_RATE, LAST_RATE))
        return Schedule(epochs, rate, (), True, round(WARM_UP * epochs), first, last)

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return the terms of the loss."""
        return self.terms(views_of(self.classifier, batch), task)

    def terms(self, views: Views, task: TaskInfo) -> dict[str, Tensor]:
        """Return the head's cross entropy, the disagreement of views, and their lack of variety."""
        classifier: Any = self.classifier
        logits = classifier.classify(views.supports)[:, : task.seen]
        terms = {"labels": HEAD_WEIGHT * functional.cross_entropy(logits, views.labels)}
        if task.classes and len(views.queries):
            found = views.neighbors(task.classes)
            sharp = losses.sharpened(found, SHARPENING)
            terms["agreement"] = losses.soft_cross_entropy(sharp.roll(len(sharp) // 2, 0), found)
            terms["entropy"] = losses.distance_from_uniform(sharp)
        return terms


class DistilledNearestNeighbors(SoftNearestNeighbors):
    """NNCSL: CSL, and the past network's nearest supports of past classes are kept."""

    class Options(SoftNearestNeighbors.Options):
        """NNCSL's own options."""

        distillation_weight: NotNegative = Field(
            0.2, description="weight of the nearest supports by the past network"
        )

    keeps_past: ClassVar[bool] = True

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return CSL's terms and, where images are stored, the distillation."""
        views = views_of(self.classifier, batch)
        terms = self.terms(views, task)
        if task.coreset and len(views.queries):
            past = range(task.past)
            with torch.no_grad():
                before = views_of(self.networks["past"], batch).neighbors(past)
            kept = losses.soft_cross_entropy(before, views.neighbors(past))
            terms["distillation"] = self.options.distillation_weight * kept
        return terms


def views_of(network: nn.Module, batch: Batch) -> Views:
    """Return a network's features; weak views share batch statistics, and strong views theirs."""
    groups = [batch.images, batch.unlabeled], [batch.strong_images, batch.strong]
    made, labeled = forward_groups(network, groups, None, updating=1), len(batch.images)
    return Views(
        supports=torch.cat([rows[:labeled] for rows in made]),
        labels=torch.cat([batch.labels, batch.labels]),
        queries=torch.cat([rows[labeled:] for rows in made]),
    )
