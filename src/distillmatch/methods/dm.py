"""DM, DistillMatch: the paper's method. Read it beside section 4 of the paper."""

from math import ceil
from typing import ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from distillmatch.config import MethodOptions, RunConfig
from distillmatch.config.base import NotNegative, Share, Switch
from distillmatch.losses import (
    class_weights,
    consistency_loss,
    per_task_distillation,
    pseudo_labels,
    weighted_cross_entropy_sum,
    with_pseudo_labels,
)
from distillmatch.methods.detector import FamiliarityDetector, true_positive_rate
from distillmatch.methods.forward import Group, forward_groups
from distillmatch.methods.method import (
    Batch,
    Method,
    NetworkBuilder,
    Passes,
    TaskInfo,
    Training,
    count_labels,
)
from distillmatch.methods.parts import (
    TEMPERATURE,
    fine_tuned_training,
    fine_tuning,
    is_fine_tuned,
    label_loss,
    label_weights,
)
from distillmatch.methods.schedule import detector_schedule
from distillmatch.networks import by_batch_statistics


class Answers(NamedTuple):
    """What the last task's networks answer: θₙ₋₁, φₙ₋₁, and the score S of φₙ₋₁."""

    past: Tensor | None = None
    detector: Tensor | None = None
    score: Tensor | None = None


class PseudoLabels(NamedTuple):
    """The label that θₙ₋₁ gives each unlabeled image, and whether it is accepted."""

    labels: Tensor
    accepted: Tensor


class StepLogits(NamedTuple):
    """Logits of a step over the seen classes, by what they are for."""

    learned: Tensor
    """Labeled images, and unlabeled ones after them where there are pseudo-labels."""
    distilled: Tensor
    """Labeled and then unlabeled images."""
    weak: Tensor
    """Weak views of unlabeled images, which strong ones are to agree with."""
    strong: Tensor
    strong_labeled: Tensor


class DistillMatch(Method):
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

    strong_views: ClassVar[bool] = True
    keeps_past: ClassVar[bool] = True
    clip: ClassVar[float | None] = 1.0
    fine_tunes_first_task: ClassVar[bool] = True
    lasting_options: ClassVar[tuple[str, ...]] = ("pseudo_labels",)

    def __init__(self, config: RunConfig, build: NetworkBuilder) -> None:
        super().__init__(config, build)
        self.weights = self.tuning_weights = torch.ones(1)
        self.detector = FamiliarityDetector(self) if self.options.pseudo_labels else None

    def loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return the classifier's loss, eq. 5."""
        return self.terms(self.classifier, "past", batch, task)

    def detector_loss(self, batch: Batch, task: TaskInfo) -> dict[str, Tensor]:
        """Return the detector's loss: eq. 5 without consistency, for want of strong views."""
        return self.terms(self.networks["detector"], "past detector", batch, task)

    def terms(
        self, network: nn.Module, teacher: str, batch: Batch, task: TaskInfo
    ) -> dict[str, Tensor]:
        """Return the terms of eq. 5, (ℓ_s + ℓ_pl) / (B + B_pl) + λ_ucl ℓ_ul + λ_dst ℓ_dst.

        They are of a network that learns, with what the frozen network `teacher` answers.
        """
        pseudo = self.pseudo_labels(batch.unlabeled_answers, task, batch.truth)
        logits = self.logits_of_step(network, batch, task, pseudo)
        terms = {"labels": self.label_term(logits, batch.labels, pseudo)}
        if len(logits.strong) and self.options.consistency_weight:
            agreement = consistency_loss(logits.weak, logits.strong, self.consistency_threshold)
            terms["consistency"] = self.options.consistency_weight * agreement
        if task.past and self.options.distillation_weight:
            past = self.teacher_logits(teacher, batch)
            kept = per_task_distillation(past, logits.distilled, task.sizes[:-1], TEMPERATURE)
            terms["distillation"] = self.options.distillation_weight * kept
        return terms

    def label_term(self, logits: StepLogits, labels: Tensor, pseudo: PseudoLabels | None) -> Tensor:
        """Return (ℓ_s + ℓ_pl) / (B + B_pl), eqs. 6 and 7 as one weighted sum.

        Where labels are learned by strong views too, it is the mean over both kinds of views.
        """
        count: Tensor | int = len(labels)
        if pseudo is not None:
            labels, count = with_pseudo_labels(labels, *pseudo)
        total = weighted_cross_entropy_sum(logits.learned, labels, self.weights)
        if len(logits.strong_labeled):
            strong = torch.cat([logits.strong_labeled, self.strong_pseudo_labeled(logits)])
            total = (total + weighted_cross_entropy_sum(strong, labels, self.weights)) / 2
        return total / count

    def strong_pseudo_labeled(self, logits: StepLogits) -> Tensor:
        """Return the logits that learn pseudo-labels beside strong views of labeled images."""
        return logits.learned[len(logits.strong_labeled) :]

    def pseudo_labels(
        self, answers: Answers | None, task: TaskInfo, truth: Tensor | None = None
    ) -> PseudoLabels | None:
        """Return θₙ₋₁'s hard labels of unlabeled images and which are accepted, if there are any.

        An image is accepted whose score reaches τ_OoD.
        """
        if not task.past or answers is None or answers.past is None or not len(answers.past):
            return None
        accepted = self.accepts(answers, task, truth)
        if accepted is None:
            return None
        return PseudoLabels(pseudo_labels(answers.past, task.past), accepted)

    def accepts(self, answers: Answers, task: TaskInfo, truth: Tensor | None) -> Tensor | None:
        """Return the unlabeled images whose score reaches τ_OoD; nothing without a detector."""
        if self.detector is None or answers.score is None:
            return None
        return answers.score >= self.values["threshold"]

    def logits_of_step(
        self, network: nn.Module, batch: Batch, task: TaskInfo, pseudo: PseudoLabels | None
    ) -> StepLogits:
        """Return the logits of a step, by one forward over groups that share batch statistics.

        Strong views share those of the unlabeled images, in a group of which consistency alone is
        taken. Labeled images share those of the unlabeled ones, a group that is distilled as well;
        or, as the recipe says, they are a group of their own with the accepted images.
        """
        labels, unlabeled = len(batch.images), len(batch.unlabeled)
        strong = Group(batch.strong, batch.strong_images)
        alone, beside = Group(), None
        if self.recipe.statistics.labeled == "alone" and task.past and unlabeled:
            beside, images = self.beside_labels(batch, pseudo)
            alone = Group(batch.images, images)
        agreeing, learned, together = forward_groups(
            network,
            [
                Group(batch.unlabeled, *strong.images) if len(strong) else strong,
                alone,
                Group(batch.images, batch.unlabeled),
            ],
            task.seen,
            # What is distilled updates the running statistics last, if anything is.
            updating=3 if self.options.distillation_weight or not len(alone) else 2,
        )
        if not len(alone):
            learned = together if pseudo is not None or not unlabeled else together[:labels]
        elif beside is not None:
            # Accepted images beyond the expected number are learned as the others see them.
            weak = together[labels:].index_copy(0, beside, learned[labels:])
            learned = torch.cat([learned[:labels], weak])
        count = 0 if batch.strong is None else len(batch.strong)
        weak, strong_logits = agreeing[:unlabeled], agreeing[unlabeled:]
        return StepLogits(learned, together, weak, strong_logits[:count], strong_logits[count:])

    def beside_labels(
        self, batch: Batch, pseudo: PseudoLabels | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the unlabeled images that share the labeled ones' statistics, by place.

        Their number is what δ lets expect, since a captured step has a fixed shape: accepted images
        first, and repeated labeled ones in the places that are left.
        """
        if pseudo is None:
            return None, None
        expected = ceil(self.expected_share * len(pseudo.accepted))
        beside = pseudo.accepted.byte().argsort(descending=True, stable=True)[:expected]
        again = torch.arange(expected, device=beside.device) % len(batch.images)
        chosen = pseudo.accepted[beside].view(-1, 1, 1, 1)
        return beside, torch.where(chosen, batch.unlabeled[beside], batch.images[again])

    def teacher_logits(self, teacher: str, batch: Batch) -> Tensor:
        """Return the logits of the frozen network `teacher` for labeled and unlabeled images.

        It was asked before; or, as the recipe says, it is asked now and normalizes by the step's
        images, as the network that learns does.
        """
        if self.recipe.statistics.teachers == "batch":
            images = torch.cat([batch.images, batch.unlabeled])
            frozen = self.networks[teacher]
            with torch.no_grad(), by_batch_statistics([frozen], [len(images)]):
                logits: Tensor = frozen(images)
            return logits
        both = batch.labeled_answers, batch.unlabeled_answers
        name = "past" if teacher == "past" else "detector"
        return torch.cat([getattr(answers, name) for answers in both])

    def ask_labeled(self, images: Tensor, task: TaskInfo) -> Answers:
        """Ask θₙ₋₁ about labeled images."""
        return Answers(past=self.networks["past"](images))

    def ask_labeled_detector(self, images: Tensor, task: TaskInfo) -> Answers:
        """Ask φₙ₋₁ about labeled images."""
        return Answers(detector=self.networks["past detector"](images))

    def ask_unlabeled(self, images: Tensor, task: TaskInfo) -> Answers:
        """Ask the last task's networks about unlabeled images."""
        past = self.networks["past"](images)
        if self.detector is None:
            return Answers(past)
        score, detector = self.detector.score_and_logits(images, task.past)
        return Answers(past, detector, score)

    @property
    def asked_by_batch(self) -> tuple[str, ...]:
        """The frozen networks that normalize by the images they are asked about."""
        by_batch = self.recipe.statistics.teachers == "batch"
        return ("past", "past detector") if by_batch else ()

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the classifier, fine-tune it, then train the detector for the next task."""
        asks_labeled = task.past and self.recipe.statistics.teachers == "running"
        classifier = fine_tuned_training(
            self,
            task,
            unlabeled=task.past > 0,
            strong=task.past > 0 and self.options.consistency_weight > 0,
            ask_labeled=self.ask_labeled if asks_labeled else None,
            ask_unlabeled=self.ask_unlabeled if task.past else None,
            asked_by_batch=self.asked_by_batch,
            before=self.balance,
        )
        trainings = [
            classifier,
            *fine_tuning(self, task, self.fine_tuning_loss, self.balance_fine_tuning),
        ]
        if self.detector is not None and not task.last:
            detector = Training(
                name="detector",
                network=self.detector.network,
                loss=self.detector_loss,
                schedule=detector_schedule(
                    self.config, self.rate, fine_tuned=is_fine_tuned(self, task)
                ),
                labeled="first-half",
                unlabeled=task.past > 0,
                clip=self.clip,
                ask_labeled=self.ask_labeled_detector if asks_labeled else None,
                ask_unlabeled=self.ask_unlabeled if task.past else None,
                asked_by_batch=self.asked_by_batch,
                after=self.calibrate,
            )
            trainings.append(detector)
        return trainings

    def balance(self, passes: Passes, task: TaskInfo) -> None:
        """Count labels and accepted pseudo-labels for the class weights w(k), eq. 3.

        With a coreset labels alone are counted. Pseudo-labels count once for each image; or, as the
        recipe says, as often as an epoch meets them while it meets each label once.
        """
        counts = passes.label_counts("labeled")
        if not self.options.class_balancing:
            self.weights = torch.ones_like(counts)
            return
        of_pseudo_labels = None
        if task.past and self.counts_pseudo_labels:
            by_batch = self.asked_by_batch
            answers = passes.ask(self.ask_unlabeled, "unlabeled", by_batch=by_batch)
            pseudo = self.pseudo_labels(answers, task, passes.truth)
            if pseudo is not None:
                of_pseudo_labels = count_labels(pseudo.labels, task.seen, pseudo.accepted)
                if self.recipe.pseudo_label_counts == "epoch":
                    steps = (counts.sum() / self.config.batch).ceil()
                    met = steps * self.config.unlabeled_batch / passes.count("unlabeled")
                    of_pseudo_labels *= met
        self.weights = class_weights(counts, of_pseudo_labels)

    @property
    def counts_pseudo_labels(self) -> bool:
        """Whether eq. 3 counts pseudo-labels beside labels."""
        return not self.config.coreset

    def balance_fine_tuning(self, passes: Passes, task: TaskInfo) -> None:
        """Count labels for the class weights of fine-tuning."""
        counts = passes.label_counts("labeled")
        balanced = self.options.class_balancing
        self.tuning_weights = label_weights(counts) if balanced else torch.ones_like(counts)

    def fine_tuning_loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        """Return the balanced cross entropy of labeled and stored images."""
        return label_loss(self.forward(batch, task), batch.labels, self.tuning_weights)

    def calibrate(self, passes: Passes, task: TaskInfo) -> None:
        """Calibrate the detector on the held-out half of the labels."""
        assert self.detector is not None
        self.detector.calibrate(passes, task, self.expected_share)

    @property
    def expected_share(self) -> float:
        """The share of images that is expected to be accepted: δ."""
        return true_positive_rate(self.config, self.options.true_positive_rate)

    @property
    def consistency_threshold(self) -> float:
        """τ_FM, the confidence from which a weak view teaches its strong view."""
        threshold: float | None = self.options.consistency_threshold
        return self.recipe.consistency_threshold if threshold is None else threshold

    def judge(
        self, answers: Answers, task: TaskInfo, truth: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """Show the pseudo-labels to the diagnostics."""
        return self.pseudo_labels(answers, task, truth)

    def familiarity(self, images: Tensor, task: TaskInfo) -> Tensor | None:
        """Score test images by the detector as it will stand in the next task."""
        if self.detector is None or task.last:
            return None
        return self.detector.score_and_logits(images, task.seen)[0]
