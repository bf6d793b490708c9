"""WorldMatch, our own method: all the environment shows is learned, by weak and by strong views.

It is DistillMatch without a detector. An unlabeled image is taken for a past class whatever it
shows, since what the last classifier says of it is part of what it knows, and labels and
pseudo-labels are learned by strong views as much as by weak ones. It goes beyond the paper, and its
figures stand apart from DM's.
"""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from distillmatch.config import AS_WRITTEN, MethodOptions, Recipe, RunConfig
from distillmatch.config.base import NotNegative, Share, Switch
from distillmatch.methods.detector import FamiliarityDetector
from distillmatch.methods.dm import Answers, DistillMatch, PseudoLabels, StepLogits
from distillmatch.methods.forward import Group, forward_groups
from distillmatch.methods.method import Batch, Method, NetworkBuilder, Passes, TaskInfo, Training
from distillmatch.methods.newness import Newness

ORACLES = ("truth", "truth-new")
NEW_ACCEPTED = 0.5
"""Share of held-out images of new classes that `accept newness` lets pass."""


class WorldMatch(DistillMatch):
    """DistillMatch that accepts every image and learns labels and pseudo-labels by strong views."""

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

    lasting_options: ClassVar[tuple[str, ...]] = ("accept",)
    detector: FamiliarityDetector | None = None
    counts_pseudo_labels: ClassVar[bool] = True

    def __init__(self, config: RunConfig, build: NetworkBuilder) -> None:
        Method.__init__(self, config, build)
        self.weights = self.tuning_weights = torch.ones(1)
        self.newness = Newness(self) if self.options.accept == "newness" else None
        self.needs_truth = self.options.accept in ORACLES

    @classmethod
    def recipe_of(cls, config: RunConfig) -> Recipe:
        """Return the paper's words, by which this method is better."""
        return AS_WRITTEN

    def accepts(self, answers: Answers, task: TaskInfo, truth: Tensor | None) -> Tensor:
        """Return the unlabeled images that are taken for past classes."""
        assert answers.past is not None
        if answers.score is not None:
            return answers.score >= self.values["threshold"]
        if self.options.accept == "truth" and truth is not None:
            return (truth >= 0) & (truth < task.past)
        if self.options.accept == "truth-new" and truth is not None:
            return (truth < task.past) | (truth >= task.seen)
        return torch.ones_like(answers.past[:, 0], dtype=torch.bool)

    def logits_of_step(
        self, network: nn.Module, batch: Batch, task: TaskInfo, pseudo: PseudoLabels | None
    ) -> StepLogits:
        """Return the logits of a step: weak views share batch statistics, and strong ones do."""
        weak, strong = forward_groups(
            network,
            [Group(batch.images, batch.unlabeled), Group(batch.strong, batch.strong_images)],
            task.seen,
            updating=1,
        )
        labels = len(batch.images)
        count = 0 if batch.strong is None else len(batch.strong)
        learned = weak[:labels] if pseudo is None and len(batch.unlabeled) else weak
        return StepLogits(learned, weak, weak[labels:], strong[:count], strong[count:])

    def strong_pseudo_labeled(self, logits: StepLogits) -> Tensor:
        """Learn pseudo-labels by strong views, where there are any in the step."""
        return logits.strong if len(logits.strong) else super().strong_pseudo_labeled(logits)

    def ask_unlabeled(self, images: Tensor, task: TaskInfo) -> Answers:
        """Return what the past classifier answers, and how familiar images look if that counts."""
        scored = self.newness is not None and self.newness.applies(task)
        score = self.newness.score(images, task).score if self.newness and scored else None
        return Answers(self.networks["past"](images), score=score)

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the classifier and fine-tune it; before that, learn what is new if that counts."""
        main, *tuned = super().trainings(task)
        before = [] if self.newness is None else self.newness.training(task)
        return [*before, replace(main, strong=task.past > 0, strong_labeled=True), *tuned]

    def balance(self, passes: Passes, task: TaskInfo) -> None:
        """Set the threshold of newness, then count labels and accepted pseudo-labels."""
        if self.newness is not None:
            self.newness.calibrate(passes, task, NEW_ACCEPTED)
        super().balance(passes, task)

    def familiarity(self, images: Tensor, task: TaskInfo) -> None:
        """Return nothing: newness says nothing of test images."""
        return
