"""WorldMatch, our own method: all the environment shows is learned, by weak and by strong views.

It is DistillMatch without a detector: an unlabeled image is taken for a past class whatever it
shows, and labels and pseudo-labels are learned by strong views as much as by weak ones. It goes
beyond the paper, and its figures stand apart from DM's.
"""

from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from distillmatch import losses
from distillmatch.config import AS_WRITTEN, MethodOptions, Recipe, RunConfig
from distillmatch.config.base import NotNegative, Share, Switch
from distillmatch.methods.detector import CALIBRATION_VIEWS, held_out_images
from distillmatch.methods.forward import Batch
from distillmatch.methods.method import (
    NetworkBuilder,
    Passes,
    PseudoLabels,
    TaskInfo,
    Training,
    count_labels,
    no_pseudo_labels,
)
from distillmatch.methods.parts import TEMPERATURE, Balanced, new_task_loss
from distillmatch.methods.schedule import detector_schedule

Accepted = Literal["everything", "newness", "two-teachers", "nothing", "truth", "truth-new"]
NEW_ACCEPTED = 0.5  # share of held-out images of new classes that `accept newness` lets pass


class Outputs(NamedTuple):
    """Logits of the past classifier; how little an image looks new, and as which new class."""

    past: Tensor
    score: Tensor | None = None
    new: Tensor | None = None


class WorldMatch(Balanced):
    """Learn all images by weak and strong views, the unlabeled ones as what the past model says."""

    class Options(MethodOptions):
        """WorldMatch's own options."""

        accept: Accepted = Field(
            "everything",
            description="unlabeled images that are taken for past classes: everything; all but "
            "what looks new; the same, and what looks new for a new class; or, as oracles for "
            "diagnosis, what is of a past class, or not of a new one",
        )
        logit_adjustment: NotNegative = Field(
            0.0,
            description="τ of the logits z + τ log(class share) by which labels and pseudo-labels "
            "are learned; 1: balanced softmax, 0: none",
        )
        class_balancing: Switch = Field(True, description="class weights w(k), eq. 3")
        consistency_weight: NotNegative = Field(1.0, description="λ_ucl; 0: no consistency")
        distillation_weight: NotNegative = Field(1.0, description="λ_dst; 0: no distillation")
        consistency_threshold: Share | None = Field(None, description="τ_FM (default: 0.9)")
        global_distillation: NotNegative = Field(
            0.0, description="weight of soft distillation over all past classes at once"
        )
        aligned: Switch = Field(False, description="scale new classes' weights to the old ones'")
        fine_tuned: Switch = Field(True, description="fine-tune the last layer")

    lasting_options: ClassVar[tuple[str, ...]] = ("accept",)
    fixed_recipe: ClassVar[Recipe | None] = AS_WRITTEN

    def __init__(self, config: RunConfig, build: NetworkBuilder) -> None:
        super().__init__(config, build)
        self.log_shares = torch.zeros(1)
        self.needs_truth = self.options.accept in ("truth", "truth-new")

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return the terms of eq. 5, whose labels and pseudo-labels are learned by both views."""
        options, logits = self.options, self.forward(batch, task)
        pseudo = self.pseudo_labels(batch.unlabeled_outputs, task, batch.truth)
        labels, count = losses.with_pseudo_labels(batch.labels, *pseudo)  # and B + B_pl
        strong = torch.cat([logits.strong_labeled, logits.strong])
        shift = options.logit_adjustment * self.log_shares
        of_weak = losses.weighted_cross_entropy_sum(logits.weak + shift, labels, self.weights)
        of_strong = losses.weighted_cross_entropy_sum(strong + shift, labels, self.weights)
        terms = {"labels": (of_weak + of_strong) / 2 / count}  # (ℓ_s + ℓ_pl) / (B + B_pl)
        if len(logits.strong) and options.consistency_weight:  # ℓ_ul, eq. 4
            agreement = losses.consistency_loss(logits.unlabeled, logits.strong, self.confidence)
            terms["consistency"] = options.consistency_weight * agreement
        if task.past and options.distillation_weight:  # ℓ_dst, eq. 1
            sizes = task.sizes[:-1]
            kept = losses.per_task_distillation(batch.past, logits.weak, sizes, TEMPERATURE)
            terms["distillation"] = options.distillation_weight * kept
        if task.past and options.global_distillation:
            kept = losses.past_distillation(batch.past, logits.weak, task.past, TEMPERATURE)
            terms["global distillation"] = options.global_distillation * kept
        return terms

    def is_fine_tuned(self, task: TaskInfo) -> bool:
        """Return whether a task ends with fine-tuning."""
        return self.options.fine_tuned and super().is_fine_tuned(task)

    def end_task(self, task: TaskInfo) -> None:
        """Scale the new classes' weights to the mean length of the old ones'."""
        if self.options.aligned and task.past:
            head: Any = self.classifier.get_submodule("head").slots
            with torch.no_grad():
                lengths = head.weight[: task.seen].norm(dim=1)
                factor = lengths[: task.past].mean() / lengths[task.past :].mean()
                head.weight[task.past : task.seen] *= factor
        super().end_task(task)

    def pseudo_labels(
        self, outputs: Outputs | None, task: TaskInfo, truth: Tensor | None
    ) -> PseudoLabels:
        """Return the class that each unlabeled image is taken for and whether that is learned."""
        if outputs is None:
            return no_pseudo_labels(self.weights)
        labels, accept = losses.pseudo_labels(outputs.past, task.past), self.options.accept
        accepted = torch.full_like(labels, accept != "nothing", dtype=torch.bool)
        if outputs.score is not None and outputs.new is not None:
            familiar = outputs.score >= self.values["threshold"]
            if accept == "newness":
                return PseudoLabels(labels, familiar)
            labels = torch.where(familiar, labels, outputs.new)
        elif accept == "truth" and truth is not None:
            accepted = (truth >= 0) & (truth < task.past)
        elif accept == "truth-new" and truth is not None:
            accepted = (truth < task.past) | (truth >= task.seen)
        return PseudoLabels(labels, accepted)

    judge = pseudo_labels

    def unlabeled_outputs(self, images: Tensor, task: TaskInfo) -> Outputs:
        """Return the past classifier's logits and, if used, how certain `newness` is of a class."""
        past = self.networks["past"](images)
        if not self.has_newness(task):
            return Outputs(past)
        logits = self.networks["newness"](images)[:, task.past : task.seen]
        score = -losses.softmax_confidence(logits, task.new)
        return Outputs(past, score, task.past + logits.argmax(dim=1))

    def has_newness(self, task: TaskInfo) -> bool:
        """Return whether newness is learned in a task, which takes more than one new class.

        A network that starts as the last classifier learns, on half of the labels, to distinguish
        the new classes and to be uncertain about unlabeled images, as GD's teacher does.
        """
        learned = self.options.accept in ("newness", "two-teachers")
        return learned and task.past > 0 and task.new > 1

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the classifier and fine-tune it; before that, learn what is new if that counts."""
        trainings = []
        if self.has_newness(task):
            network = self.start_afresh("newness", task, from_past=True)
            schedule = detector_schedule(self.config, self.rate)
            of_half: dict[str, Any] = {"labeled": "first-half", "clip": self.clip}
            loss = partial(new_task_loss, network, calibrated=True)  # that of GD's teacher
            trainings = [Training("newness", network, loss, schedule, **of_half)]
        later = task.past > 0
        changes: dict[str, Any] = {"unlabeled": later, "strong": later, "strong_labeled": True}
        changes |= {"frozen_unlabeled": self.unlabeled_outputs} if later else {}
        classifier = self.main_training(task, before=self.balance, **changes)
        return [*trainings, classifier, *self.head_tuning(task)]

    def balance(self, passes: Passes, task: TaskInfo) -> None:
        """Set the threshold of newness, then count labels and pseudo-labels.

        The class weights w(k), eq. 3, count each image once; the class shares of the logit
        adjustment count as many as a step meets, smoothed by 1 as the weights are.
        """
        over = held_out_images(passes)
        if self.has_newness(task) and (new := passes.labels(over) >= task.past).any():
            scores = passes.run(self.unlabeled_outputs, over, CALIBRATION_VIEWS).score
            threshold = losses.threshold_at_tpr(scores[new.repeat(CALIBRATION_VIEWS)], NEW_ACCEPTED)
            self.values["threshold"] = float(threshold)
        counts = in_step = passes.label_counts("labeled")
        if task.past:
            outputs = passes.run(self.unlabeled_outputs, "unlabeled")
            labels, accepted = self.pseudo_labels(outputs, task, passes.truth)
            found = count_labels(labels, task.seen, accepted)
            counts = counts + found
            met = self.config.unlabeled_batch / max(1, passes.count("unlabeled"))
            in_step = in_step + found * met * in_step.sum() / self.config.batch
        balanced = self.options.class_balancing
        self.weights = losses.class_weights(counts) if balanced else torch.ones_like(counts)
        self.log_shares = ((in_step + 1) / (in_step + 1).sum()).log()

    def familiarity(self, images: Tensor, task: TaskInfo) -> Tensor | None:
        """Score images by how certain the classifier is of any class."""
        return losses.softmax_confidence(self.logits(images), task.seen)
