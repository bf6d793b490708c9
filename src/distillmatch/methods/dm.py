"""DM, DistillMatch: the paper's method."""

from dataclasses import replace
from math import ceil

import torch
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.config.run import CALIBRATED_GATES, ORACLES
from distillmatch.losses import (
    class_weights,
    consistency_loss,
    distillmatch_loss,
    log_mean_probabilities,
    pseudo_labels,
    soft_distillation_sum,
    weighted_cross_entropy_sum,
    with_pseudo_labels,
)
from distillmatch.methods.detector import (
    DETECTOR_LOGITS,
    FamiliarityDetector,
    true_positive_rate,
)
from distillmatch.methods.forwards import (
    Views,
    first_rows,
    forward_views,
    labeled_alone,
    over_views,
)
from distillmatch.methods.gate import GATE
from distillmatch.methods.gates import make_gate
from distillmatch.methods.method import (
    Batch,
    NetworkBuilder,
    Passes,
    ScoreFunction,
    Scores,
    TaskInfo,
    Training,
    count_labels,
    no_rows,
)
from distillmatch.methods.parts import (
    HIGH_RATE,
    KeepsPast,
    by_past_statistics,
    distils_in_step,
    fine_tuning,
    local_distillation,
    past_logits_to_distil,
)
from distillmatch.methods.schedule import main_schedule

BY_VIEWS = {"past": "past by views", GATE: "gate by views"}
"""What pseudo-labels are taken from, and its name where it is the mean over several views."""
ANSWERS = {"past": "past", "past detector": DETECTOR_LOGITS}
"""The frozen networks that are distilled, and the names of their logits."""


class DistillMatch(KeepsPast):
    """Hard distillation of familiar unlabelled images, class balance, consistency, distillation."""

    def __init__(self, config: RunConfig, build: NetworkBuilder) -> None:
        super().__init__(config, build)
        self.needs_truth = config.pseudo_labels and config.gate in ORACLES
        detects = config.pseudo_labels and config.gate in ("detector", "ensemble")
        self.detector = FamiliarityDetector(self) if detects else None
        self.gate = make_gate(config, self, self.detector) if config.pseudo_labels else None
        self.weights = torch.ones(1)

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the classifier, fine-tune it, then train the detector for the next task.

        A gate that learns from the task's own images does so before.
        """
        schedule = main_schedule(self.config, HIGH_RATE, fine_tuned=task.coreset)
        consistent = self.uses_consistency(task)
        asks = task.past > 0 and not distils_in_step(self.config)

        def score(images: Tensor) -> Scores:
            return self.score(images, task)

        of_classifier = self.ask_about_unlabeled if self.decides_once else score
        classifier = Training(
            name="classifier",
            network=self.classifier,
            loss=lambda batch: self.classifier_loss(batch, task),
            schedule=schedule,
            unlabeled=task.past > 0 or consistent,
            strong=consistent or self.learns_strong_pseudo_labels(task),
            strong_labeled=self.learns_strong_labels,
            clip=self.config.clip,
            score_images=self.ask_about_labels if asks else None,
            score_unlabeled=of_classifier if task.past else None,
            before=lambda passes: self.prepare(passes, task, of_classifier),
        )
        trainings = [
            replace(training, average_decay=self.config.weight_averaging)
            for training in (
                classifier,
                *fine_tuning(self.config, task, self.classifier, HIGH_RATE),
            )
        ]
        if self.detector is not None and not task.last:
            trainings.append(
                self.detector.training(
                    task,
                    lambda batch: self.detector_loss(batch, task),
                    self.detector.ask_about_unlabeled if self.decides_once else score,
                )
            )
        if self.gate is not None and not task.last:
            gate = self.gate
            trainings[-1] = replace(
                trainings[-1], after=lambda passes: gate.calibrate(passes, task)
            )
        return trainings if self.gate is None else [*self.gate.trainings(task), *trainings]

    def classifier_loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        """Eq. 5: labels, pseudo-labels, consistency and distillation."""
        return self.total(batch, task, self.classifier, "past")

    def detector_loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        """Eq. 5 without consistency, for want of strong views, distilling the last detector."""
        return self.total(batch, task, self.networks["detector"], "past detector")

    def total(self, batch: Batch, task: TaskInfo, network: nn.Module, teacher: str) -> Tensor:
        """Put the parts of eq. 5 together, those that are switched on; `teacher` is distilled.

        Eqs. 6 and 7 are one sum over labelled and then unlabelled images, the pseudo-labels
        following the labels. Where labels are learned by strong views too, it is the mean of the
        sum over weak views and of that over strong ones. Frozen models have decided which
        pseudo-labels are accepted, so that all images that it is about go through one forward.
        """
        labels, accepted, soft = batch.labels, None, None
        count: Tensor | int = len(labels)
        if self.gate is not None and task.past and not no_rows(batch.unlabeled):
            guesses, accepted = self.pseudo_labels(batch.of_unlabeled, task)
        beside = self.beside_labels(task, accepted)
        alone = labeled_alone(self.config, batch, task)
        if beside is not None and accepted is not None:
            alone.append(self.images_beside_labels(batch, beside, accepted[beside]))
        statistics = self.config.strong_statistics
        views = forward_views(network, batch, task.seen, statistics, alone)
        logits = learned_by(views, beside)
        if accepted is not None and self.config.pseudo_label_targets == "hard":
            labels, count = with_pseudo_labels(labels, guesses, accepted)
        elif accepted is not None:
            soft, count = accepted, len(labels) + accepted.sum()

        def learned(logits: Tensor) -> Tensor:
            of_labels = first_rows(logits, len(labels))
            total = weighted_cross_entropy_sum(of_labels, labels, self.weights)
            if soft is None:
                return total
            unlabeled, past = logits[len(labels) :], for_labels(batch.of_unlabeled)["past"]
            return total + soft_distillation_sum(unlabeled, past, task.past, self.weights, soft)

        consistency, distilled = None, None
        if views.strong is not None and self.uses_consistency(task):
            threshold = self.config.consistency_threshold
            consistency = consistency_loss(views.unlabeled, views.strong, threshold)
        if self.config.distillation and ANSWERS[teacher] in batch.of_unlabeled:
            past = past_logits_to_distil(self, batch, teacher, ANSWERS[teacher])
            distilled = local_distillation(self.config, task, past, views.weak)
        strong = None
        if views.strong_images is not None:
            unlabeled = logits[len(batch.labels) :]
            if views.strong is not None and self.learns_strong_pseudo_labels(task):
                unlabeled = views.strong
            strong = torch.cat([views.strong_images, unlabeled])
        return distillmatch_loss(
            over_views(learned, logits, strong),
            count,
            consistency,
            distilled,
            self.config.consistency_weight,
            self.config.distillation_weight,
        )

    def beside_labels(self, task: TaskInfo, accepted: Tensor | None) -> Tensor | None:
        """Return which unlabelled images are normalized once more, with the labelled ones alone.

        They are as many as δ lets expect to be accepted, since the shape of a step is fixed: the
        accepted ones come first, any beyond that number stay as they are, and of those that fill it
        up nothing is learned.
        """
        apart = self.config.labeled_statistics == "apart"
        if accepted is None or not apart or self.config.accepted_statistics == "unlabeled":
            return None
        expected = ceil(self.expected_share(task) * len(accepted))
        return accepted.byte().argsort(descending=True, stable=True)[:expected]

    def images_beside_labels(self, batch: Batch, beside: Tensor, accepted: Tensor) -> Tensor:
        """Return these unlabelled images, or labelled ones again for those that are not accepted.

        The latter, where no others are to stand beside them: the labelled ones that are there twice
        change the statistics less than strangers do.
        """
        images = batch.unlabeled[beside]
        if self.config.accepted_statistics == "labeled":
            return images
        again = torch.arange(len(beside), device=beside.device) % len(batch.images)
        return torch.where(accepted.view(-1, 1, 1, 1), images, batch.images[again])

    def expected_share(self, task: TaskInfo) -> float:
        """Return the share of images that the gate is set to accept in a task: δ, or all."""
        calibrated = self.config.gate in CALIBRATED_GATES
        return true_positive_rate(self.config, task.number) if calibrated else 1.0

    def pseudo_labels(self, scores: Scores, task: TaskInfo) -> tuple[Tensor, Tensor]:
        """Return the last classifier's hard labels and which of them are believed."""
        assert self.gate is not None
        scores = for_labels(scores)
        return pseudo_labels(scores["past"], task.past), self.gate.accepts(scores, task)

    @property
    def decides_once(self) -> bool:
        """Whether images are labelled and judged once a task, by several views."""
        return self.gate is not None and self.config.pseudo_label_views > 1

    def judge(self, scores: Scores, task: TaskInfo) -> tuple[Tensor, Tensor] | None:
        """Show the pseudo-labels to the diagnostics."""
        return self.pseudo_labels(scores, task) if self.gate is not None and task.past else None

    def prepare(self, passes: Passes, task: TaskInfo, score: ScoreFunction) -> None:
        """Set the gate on this task, then count what it lets pass."""
        if self.gate is not None:
            self.gate.prepare(passes, task)
        if task.past and self.decides_once:
            self.decide_by_views(passes, task)
        self.balance(passes, task, score)

    def decide_by_views(self, passes: Passes, task: TaskInfo) -> None:
        """Decide on every unlabelled image once for the task, by the mean over views of it."""
        views = self.config.pseudo_label_views

        def ask(images: Tensor) -> Scores:
            scores = self.score(images, task)
            return {name: scores[name].float() for name in BY_VIEWS if name in scores}

        said = passes.score(ask, "unlabeled", views)
        logits = torch.stack(said["past"][:, : task.past].chunk(views))
        notes = {BY_VIEWS["past"]: log_mean_probabilities(logits)}
        if GATE in said:
            notes[BY_VIEWS[GATE]] = torch.stack(said[GATE].chunk(views)).mean(dim=0)
        passes.note(notes)

    def balance(self, passes: Passes, task: TaskInfo, score: ScoreFunction) -> None:
        """Count labels and accepted pseudo-labels in a whole pass, for the weights of eq. 3.

        By `epoch` the latter count as often as they are met while each label is met once.
        """
        config, labels = self.config, passes.label_counts("labeled")
        counts_pseudo_labels = task.past > 0 and self.gate is not None
        if config.coreset and config.coreset_counts == "labels":
            counts_pseudo_labels = False
        of_pseudo_labels = None
        if counts_pseudo_labels:
            scores = passes.score(score, "unlabeled")
            guesses, accepted = self.pseudo_labels(scores, task)
            of_pseudo_labels = count_labels(guesses, task.seen, accepted)
            if config.pseudo_label_counts == "epoch" and len(guesses):
                steps = (labels.sum() / config.batch).ceil()
                of_pseudo_labels *= steps * config.unlabeled_batch / len(guesses)
        if config.class_balancing:
            self.weights = class_weights(
                labels, of_pseudo_labels, config.count_smoothing, config.weight_cap
            )
        else:
            self.weights = torch.ones_like(labels)

    def score(self, images: Tensor, task: TaskInfo) -> Scores:
        """Ask the last task's models about weak views: logits, and how familiar they look."""
        if self.gate is None:
            return self.ask_about_unlabeled(images)
        gate = self.gate

        def ask(images: Tensor) -> Scores:
            logits, familiarity = gate.ask(images, task.past, "past")
            return {"past": logits, **familiarity}

        frozen = [
            self.networks[name] for name in ("past", "past detector") if name in self.networks
        ]
        return by_past_statistics(self.config, ask, images, frozen)

    def familiarity(self, images: Tensor, task: TaskInfo) -> Tensor | None:
        """Score test images by the gate as it will stand in the next task."""
        if self.gate is None or not self.gate.judges_tests or (self.gate.learns and task.last):
            return None
        return self.gate.ask(images, task.seen, "classifier")[1].get(GATE)

    def uses_consistency(self, task: TaskInfo) -> bool:
        """Tell whether eq. 4 is part of this task's loss."""
        return self.config.consistency and (
            task.past > 0 or self.config.consistency_from == "first-task"
        )

    def learns_strong_pseudo_labels(self, task: TaskInfo) -> bool:
        """Tell whether pseudo-labels are learned by strong views too in this task."""
        wanted = self.config.strong_labels == "labels-and-pseudo-labels"
        return wanted and self.gate is not None and task.past > 0


def learned_by(views: Views, beside: Tensor | None) -> Tensor:
    """Return the logits that labels and then pseudo-labels are learned by.

    They are those of all weak views; or, where labelled images are normalized alone, theirs are of
    these, and so are those of the unlabelled images that stood `beside` them.
    """
    if views.alone is None:
        return views.weak
    labels = len(views.labeled)
    unlabeled = views.weak[labels:]
    if beside is None:
        return torch.cat([views.alone, unlabeled])
    of_images, of_beside = torch.split(views.alone, [labels, len(beside)])
    return torch.cat([of_images, unlabeled.index_copy(0, beside, of_beside)])


def for_labels(scores: Scores) -> Scores:
    """Let what was said of several views of an image stand for what is said of this one."""
    return {**scores, **{k: scores[note] for k, note in BY_VIEWS.items() if note in scores}}
