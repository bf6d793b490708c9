"""DM, DistillMatch: the paper's method. Read it beside section 4 of the paper."""

from functools import partial
from math import ceil
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from distillmatch import losses
from distillmatch.config import MethodOptions, RunConfig
from distillmatch.config.base import NotNegative, Share, Switch
from distillmatch.methods.detector import FamiliarityDetector, true_positive_rate
from distillmatch.methods.forward import Batch, consistent_logits, frozen_logits
from distillmatch.methods.method import (
    NetworkBuilder,
    Passes,
    Past,
    PseudoLabels,
    TaskInfo,
    Training,
    count_labels,
    no_pseudo_labels,
)
from distillmatch.methods.parts import TEMPERATURE, Balanced, label_sum
from distillmatch.methods.schedule import detector_schedule


class Outputs(NamedTuple):
    """For unlabeled images: logits of θₙ₋₁, and of the detector φₙ₋₁ its logits and score S."""

    past: Tensor
    detector: Tensor | None = None
    score: Tensor | None = None


class DistillMatch(Balanced):
    """Hard distillation of familiar unlabeled images, class balance, consistency, distillation."""

    class Options(MethodOptions):
        """DM's own options: each part of eq. 5 can be taken away."""

        pseudo_labels: Switch = Field(True, description="hard distillation of accepted images")
        class_balancing: Switch = Field(True, description="class weights w(k), eq. 3")
        consistency_weight: NotNegative = Field(1.0, description="λ_ucl; 0: no consistency")
        distillation_weight: NotNegative = Field(1.0, description="λ_dst; 0: no distillation")
        consistency_threshold: Share | None = Field(
            None, description="τ_FM (default: 0.85, or 0.9 with recipe as-written)"
        )
        true_positive_rate: Share | None = Field(
            None, description="δ, to which τ_OoD is set (default: 0.5; 0.05 with a coreset)"
        )

    lasting_options: ClassVar[tuple[str, ...]] = ("pseudo_labels",)

    def __init__(self, config: RunConfig, build: NetworkBuilder) -> None:
        super().__init__(config, build)
        rate = true_positive_rate(config, self.options.true_positive_rate)
        self.detector = FamiliarityDetector(self, rate) if self.options.pseudo_labels else None
        by_batch = self.recipe.statistics.teachers == "batch"
        self.by_batch = ("past", "past detector") if by_batch else ()

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return the classifier's loss, eq. 5."""
        return self.total_loss(self.classifier, batch, task)

    def total_loss(self, network: nn.Module, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return the terms of eq. 5, (ℓ_s + ℓ_pl) / (B + B_pl) + λ_ucl ℓ_ul + λ_dst ℓ_dst.

        The detector learns by it as well; its batches have no strong views.
        """
        options = self.options
        labels, accepted = self.pseudo_labels(batch.unlabeled_outputs, task)
        alone = None  # or the images that labels share batch statistics with: the accepted ones
        if self.recipe.statistics.labeled == "alone" and len(accepted):
            expected_share = 0.0 if self.detector is None else self.detector.rate
            alone = accepted, ceil(expected_share * len(accepted))
        distilled = options.distillation_weight > 0
        logits = consistent_logits(network, batch, task.seen, alone, distilled)
        supervised = label_sum(logits, batch.labels, self.weights)  # ℓ_s, eq. 6
        pseudo_labeled = losses.weighted_cross_entropy_sum(  # ℓ_pl, eq. 7
            logits.pseudo_labeled, labels, self.weights, accepted
        )
        count = len(batch.labels) + accepted.sum()  # B + B_pl
        terms = {"labels": (supervised + pseudo_labeled) / count}
        if len(logits.strong) and options.consistency_weight:  # ℓ_ul, eq. 4
            consistency = losses.consistency_loss(logits.unlabeled, logits.strong, self.confidence)
            terms["consistency"] = options.consistency_weight * consistency
        if task.past and options.distillation_weight:  # ℓ_dst, eq. 1
            past = self.past_logits(network, batch)
            kept = losses.per_task_distillation(past, logits.weak, task.sizes[:-1], TEMPERATURE)
            terms["distillation"] = options.distillation_weight * kept
        return terms

    def pseudo_labels(self, outputs: Outputs | None, task: TaskInfo) -> PseudoLabels:
        """Return θₙ₋₁'s hard labels of unlabeled images and which are accepted: S reaches τ_OoD.

        Without a detector none is accepted; in the first task there are no images.
        """
        if outputs is None:
            return no_pseudo_labels(self.weights)
        labels = losses.pseudo_labels(outputs.past, task.past)
        if outputs.score is None:
            return PseudoLabels(labels, torch.zeros_like(labels, dtype=torch.bool))
        return PseudoLabels(labels, outputs.score >= self.values["threshold"])

    def past_logits(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the logits of a network's frozen copy for labeled and then unlabeled images.

        They were computed beforehand, or the copy normalizes by the step's images too.
        """
        of_detector, outputs = network is not self.classifier, batch.unlabeled_outputs
        if self.by_batch:
            frozen = self.networks["past detector" if of_detector else "past"]
            return frozen_logits(frozen, [batch.images, batch.unlabeled])
        of_unlabeled = outputs.detector if of_detector else outputs.past
        return torch.cat([batch.labeled_outputs.past, of_unlabeled])

    def past_detector_outputs(self, images: Tensor, task: TaskInfo) -> Past:
        """Return the logits of φₙ₋₁ for labeled images."""
        return Past(self.networks["past detector"](images))

    def unlabeled_outputs(self, images: Tensor, task: TaskInfo) -> Outputs:
        """Return the outputs of the last task's networks for unlabeled images."""
        past = self.networks["past"](images)
        if self.detector is None:
            return Outputs(past)
        score, detector = self.detector.score_and_logits(images, task.past)
        return Outputs(past, detector, score)

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the classifier, fine-tune it, then train the detector for the next task."""
        later = task.past > 0
        beforehand = later and not self.by_batch
        both: dict[str, Any] = {"unlabeled": later, "by_batch": self.by_batch}
        both["frozen_unlabeled"] = self.unlabeled_outputs if later else None
        classifier = self.main_training(
            task,
            strong=later and self.options.consistency_weight > 0,
            frozen_labeled=self.past_outputs if beforehand else None,
            before=self.balance,
            **both,
        )
        trainings = [classifier, *self.head_tuning(task)]
        if self.detector is not None and not task.last:
            network, tuned = self.networks["detector"], self.is_fine_tuned(task)
            detector = Training(
                "detector",
                network,
                partial(self.total_loss, network),
                detector_schedule(self.config, self.rate, fine_tuned=tuned),
                labeled="first-half",
                clip=self.clip,
                frozen_labeled=self.past_detector_outputs if beforehand else None,
                after=self.detector.calibrate,
                **both,
            )
            trainings.append(detector)
        return trainings

    def balance(self, passes: Passes, task: TaskInfo) -> None:
        """Set the class weights w(k), eq. 3; with a coreset labels alone are counted.

        Pseudo-labels count once for each image, or as often as an epoch meets them.
        """
        counts, images = passes.label_counts("labeled"), passes.count("unlabeled")
        balanced = self.options.class_balancing
        if balanced and task.past and images and not self.config.coreset:
            outputs = passes.run(self.unlabeled_outputs, "unlabeled", by_batch=self.by_batch)
            labels, accepted = self.pseudo_labels(outputs, task)
            found = count_labels(labels, task.seen, accepted)
            if self.recipe.pseudo_label_counts == "epoch":
                steps = ceil(passes.count("labeled") / self.config.batch)
                found *= steps * self.config.unlabeled_batch / images
            counts = counts + found
        self.weights = losses.class_weights(counts) if balanced else torch.ones_like(counts)

    def judge(self, outputs: Outputs, task: TaskInfo, truth: Tensor | None) -> PseudoLabels | None:
        """Return the pseudo-labels for the diagnostics, if there is a detector."""
        return None if outputs.score is None else self.pseudo_labels(outputs, task)

    def familiarity(self, images: Tensor, task: TaskInfo) -> Tensor | None:
        """Score test images by the detector as it will stand in the next task."""
        if self.detector is None or task.last:
            return None
        return self.detector.score_and_logits(images, task.seen)[0]
