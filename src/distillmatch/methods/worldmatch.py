"""WorldMatch, our own method: all the environment shows is learned, by weak and by strong views.

It is DistillMatch without a detector. An unlabeled image is taken for a past class whatever it
shows, since the last classifier's output for it is part of what that classifier knows, and labels
and pseudo-labels are learned by strong views as much as by weak ones. It goes beyond the paper, and
its figures stand apart from DM's.
"""

from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from distillmatch.config import AS_WRITTEN, MethodOptions, Recipe, RunConfig
from distillmatch.config.base import NotNegative, Share, Switch
from distillmatch.losses import (
    class_weights,
    consistency_loss,
    per_task_distillation,
    pseudo_labels,
    weighted_cross_entropy_sum,
    with_pseudo_labels,
)
from distillmatch.methods.forward import Batch
from distillmatch.methods.method import NetworkBuilder, Passes, TaskInfo, Training, count_labels
from distillmatch.methods.newness import Newness
from distillmatch.methods.parts import TEMPERATURE, Balanced, fine_tuned_training

ORACLES = ("truth", "truth-new")
NEW_ACCEPTED = 0.5
"""Share of held-out images of new classes that `accept newness` lets pass."""


class Outputs(NamedTuple):
    """Logits of the past classifier, and how familiar an image is if that is scored."""

    past: Tensor
    score: Tensor | None = None


class PseudoLabels(NamedTuple):
    """The past class that each unlabeled image is taken for, and whether that is learned."""

    labels: Tensor
    accepted: Tensor


class WorldMatch(Balanced):
    """Learn all images by weak and strong views, the unlabeled ones as what the past model says."""

    class Options(MethodOptions):
        """WorldMatch's own options."""

        accept: Literal["everything", "newness", "truth", "truth-new"] = Field(
            "everything",
            description="unlabeled images that are taken for past classes: everything; all but "
            "what looks new; or, as oracles for diagnosis, what is of a past class, or not of a "
            "new one",
        )
        class_balancing: Switch = Field(True, description="class weights w(k), eq. 3")
        consistency_weight: NotNegative = Field(1.0, description="λ_ucl; 0: no consistency")
        distillation_weight: NotNegative = Field(1.0, description="λ_dst; 0: no distillation")
        consistency_threshold: Share | None = Field(None, description="τ_FM (default: 0.9)")

    strong_views: ClassVar[bool] = True
    keeps_past: ClassVar[bool] = True
    clip: ClassVar[float | None] = 1.0
    fine_tunes_first_task: ClassVar[bool] = True
    lasting_options: ClassVar[tuple[str, ...]] = ("accept",)

    def __init__(self, config: RunConfig, build: NetworkBuilder) -> None:
        super().__init__(config, build)
        self.newness = Newness(self) if self.options.accept == "newness" else None
        self.needs_truth = self.options.accept in ORACLES

    @classmethod
    def recipe_of(cls, config: RunConfig) -> Recipe:
        """Return the paper's words, by which this method is better."""
        return AS_WRITTEN

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return the terms of eq. 5, whose labels and pseudo-labels are learned by both views."""
        options, logits = self.options, self.forward(batch, task)
        pseudo = self.pseudo_labels(batch.unlabeled_outputs, task, batch.truth)
        labels, count = with_pseudo_labels(batch.labels, *pseudo)
        strong = torch.cat([logits.strong_labeled, logits.strong])
        of_weak = weighted_cross_entropy_sum(logits.weak, labels, self.weights)
        of_strong = weighted_cross_entropy_sum(strong, labels, self.weights)
        terms = {"labels": (of_weak + of_strong) / 2 / count}
        if len(logits.strong) and options.consistency_weight:
            threshold = options.consistency_threshold or self.recipe.consistency_threshold
            agreement = consistency_loss(logits.unlabeled, logits.strong, threshold)
            terms["consistency"] = options.consistency_weight * agreement
        if task.past and options.distillation_weight:
            kept = per_task_distillation(batch.past, logits.weak, task.sizes[:-1], TEMPERATURE)
            terms["distillation"] = options.distillation_weight * kept
        return terms

    def pseudo_labels(
        self, outputs: Outputs | None, task: TaskInfo, truth: Tensor | None
    ) -> PseudoLabels:
        """Return the past class of each unlabeled image and whether it is accepted."""
        if outputs is None:
            nothing = self.weights.new_zeros(0)
            return PseudoLabels(nothing.long(), nothing.bool())
        labels = pseudo_labels(outputs.past, task.past)
        if outputs.score is not None:
            accepted = outputs.score >= self.values["threshold"]
        elif self.options.accept == "truth" and truth is not None:
            accepted = (truth >= 0) & (truth < task.past)
        elif self.options.accept == "truth-new" and truth is not None:
            accepted = (truth < task.past) | (truth >= task.seen)
        else:
            accepted = torch.ones_like(labels, dtype=torch.bool)
        return PseudoLabels(labels, accepted)

    def unlabeled_outputs(self, images: Tensor, task: TaskInfo) -> Outputs:
        """Return the past classifier's logits, and how familiar images look if that counts."""
        scored = self.newness is not None and self.newness.applies(task)
        score = self.newness.score(images, task).score if self.newness and scored else None
        return Outputs(self.networks["past"](images), score)

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the classifier and fine-tune it; before that, learn what is new if that counts."""
        before = [] if self.newness is None else self.newness.training(task)
        classifier = fine_tuned_training(
            self,
            task,
            unlabeled=task.past > 0,
            strong=task.past > 0,
            strong_labeled=True,
            frozen_unlabeled=self.unlabeled_outputs if task.past else None,
            before=self.balance,
        )
        return [*before, classifier, *self.fine_tuning(task)]

    def balance(self, passes: Passes, task: TaskInfo) -> None:
        """Set the threshold of newness, then count labels and pseudo-labels for w(k), eq. 3."""
        if self.newness is not None:
            self.newness.calibrate(passes, task, NEW_ACCEPTED)
        counts = passes.label_counts("labeled")
        self.weights = torch.ones_like(counts)
        if self.options.class_balancing:
            if task.past:
                outputs = passes.run(self.unlabeled_outputs, "unlabeled")
                pseudo = self.pseudo_labels(outputs, task, passes.truth)
                counts = counts + count_labels(pseudo.labels, task.seen, pseudo.accepted)
            self.weights = class_weights(counts)

    def judge(self, outputs: Outputs, task: TaskInfo, truth: Tensor | None) -> PseudoLabels:
        """Return the pseudo-labels for the diagnostics."""
        return self.pseudo_labels(outputs, task, truth)
