"""What a gate is: what decides that an unlabelled image is of a past class, so it is labelled."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from distillmatch.errors import ConfigError
from distillmatch.losses import accepted, threshold_at_fpr, threshold_at_tpr
from distillmatch.methods.detector import CALIBRATION_VIEWS, true_positive_rate
from distillmatch.methods.method import ImageSet, Method, Passes, Scores, TaskInfo, Training

GATE = "gate"


class Gate(ABC):
    """Scores images by what was learned up to the last task, and accepts some.

    One that `learns` can score only after its calibration, for which the last task has no use. If
    it `judges_tests` its scores tell classes seen from others; otherwise test images get none.
    """

    learns: ClassVar[bool] = False
    judges_tests: ClassVar[bool] = True

    def __init__(self, method: Method) -> None:
        self.method = method

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Return what is trained for the gate in a task, before any of its images is judged."""
        return []

    def calibrate(self, passes: Passes, task: TaskInfo) -> None:
        """Set what the next task needs, once all networks of this one are trained."""
        return

    def prepare(self, passes: Passes, task: TaskInfo) -> None:
        """Set what a task needs that only its own images tell, before any of them is judged.

        A run that is continued calls it again: it must come to the same by the frozen models.
        """
        return

    @abstractmethod
    def ask(self, images: Tensor, classes: int, network: str) -> tuple[Tensor, Scores]:
        """Return the logits of a classifier of so many classes, and how familiar images look.

        Both are asked for at once because most gates score by the same forward.
        """

    @abstractmethod
    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Return which unlabelled images are believed to be of past classes."""


class ThresholdGate(Gate):
    """Accepts images whose score reaches a threshold."""

    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Compare with the threshold."""
        return accepted(scores[GATE], self.method.values["threshold"])

    def set_threshold(self, passes: Passes, task: TaskInfo, over: ImageSet) -> None:
        """Set the threshold to the score that δ of some labelled images reach."""
        scores = self._scores(passes, over, task.seen, "classifier")
        rate = true_positive_rate(self.method.config, task.number + 1)
        self.method.values["threshold"] = float(threshold_at_tpr(scores, rate))

    def prepare(self, passes: Passes, task: TaskInfo) -> None:
        """Set the threshold to the score that a share of known strangers reach, if one is given.

        Those are the labelled images of the new classes, of which nothing was learned so far: δ can
        only be measured on images that most gates' networks were trained on, this on new ones.
        """
        rate = self.method.config.false_positive_rate
        if rate is not None and task.past:
            self.set_threshold_on_strangers(passes, task, "new", rate)

    def set_threshold_on_strangers(
        self, passes: Passes, task: TaskInfo, over: ImageSet, rate: float
    ) -> None:
        """Set the threshold to the score that a share of the new classes' images in a set reach."""
        strange = passes.labels(over) >= task.past
        if not strange.any():
            # One's own data may bring no new class; then the threshold stays.
            return
        scores = self._scores(passes, over, task.past, "past")
        known_strangers = scores[strange.repeat(CALIBRATION_VIEWS)].flatten()
        self.method.values["threshold"] = float(threshold_at_fpr(known_strangers, rate))

    def _scores(self, passes: Passes, over: ImageSet, classes: int, network: str) -> Tensor:
        """Score the views that a threshold is set on."""

        def score(images: Tensor) -> Scores:
            return {GATE: self.ask(images, classes, network)[1][GATE]}

        return passes.score(score, over, CALIBRATION_VIEWS)[GATE]

    def learned(self, name: str) -> Tensor:
        """Return what calibration has kept under a name."""
        if name not in self.method.tensors:
            raise ConfigError(
                f"gate '{self.method.config.gate}' must be chosen before the first task is "
                "learned: of the tasks so far it has learned nothing"
            )
        return self.method.tensors[name]


def all_accepted(scores: Scores) -> Tensor:
    """Accept every image that was asked about."""
    return torch.ones_like(scores["past"][:, 0], dtype=torch.bool)
