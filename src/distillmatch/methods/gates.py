"""Gates: what decides that an unlabelled image is of a past class, so that it is labelled."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.losses import accepted, energy_score, softmax_confidence, threshold_at_tpr
from distillmatch.methods.detector import (
    CALIBRATION_VIEWS,
    FamiliarityDetector,
    true_positive_rate,
)
from distillmatch.methods.method import Method, Passes, Scores, TaskInfo

GATE = "gate"
TRUTH = "truth"


class Gate(ABC):
    """Scores images by what was learned up to the last task, and accepts some."""

    def __init__(self, method: Method) -> None:
        self.method = method

    def calibrate(self, passes: Passes, task: TaskInfo) -> None:
        """Set what the next task needs, once the classifier of this one is trained."""
        return

    @abstractmethod
    def familiarity(self, images: Tensor, classes: int, network: str) -> Tensor | None:
        """Score images by `network`, a classifier that has learned so many classes."""

    @abstractmethod
    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Return which unlabelled images are believed to be of past classes."""


class DetectorGate(Gate):
    """The paper's: a detector of its own, calibrated to a true-positive rate."""

    def __init__(self, method: Method, detector: FamiliarityDetector) -> None:
        super().__init__(method)
        self.detector = detector

    def familiarity(self, images: Tensor, classes: int, network: str) -> Tensor:
        """Ask the detector as it was at the end of the last task it was trained in."""
        return self.detector.ask(images, classes)[0]

    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Compare with the calibrated threshold."""
        return accepted(scores[GATE], self.method.values["threshold"])


class SoftmaxGate(Gate):
    """The classifier's own confidence, against a fixed threshold."""

    def __init__(self, method: Method) -> None:
        super().__init__(method)
        method.values["threshold"] = method.config.gate_confidence

    def familiarity(self, images: Tensor, classes: int, network: str) -> Tensor:
        """Return the largest softmax probability."""
        return softmax_confidence(self.method.networks[network](images), classes)

    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Compare with the configured confidence."""
        return accepted(scores[GATE], self.method.values["threshold"])


class EnergyGate(Gate):
    """The classifier's own free energy (Liu et al. 2020): no detector is trained or asked.

    The threshold is the score that δ of the labelled images reach, though the classifier was
    trained on them: their scores are higher than those of new images of the same classes.
    """

    def familiarity(self, images: Tensor, classes: int, network: str) -> Tensor:
        """Return the energy over the classes that were learned."""
        return energy_score(self.method.networks[network](images), classes)

    def calibrate(self, passes: Passes, task: TaskInfo) -> None:
        """Set the threshold to the score that δ of the labelled images reach."""

        def score(images: Tensor) -> Scores:
            return {GATE: self.familiarity(images, task.seen, "classifier")}

        scores = passes.score(score, "labeled", CALIBRATION_VIEWS)[GATE]
        rate = true_positive_rate(self.method.config)
        self.method.values["threshold"] = float(threshold_at_tpr(scores, rate))

    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Compare with the calibrated threshold."""
        return accepted(scores[GATE], self.method.values["threshold"])


class OpenGate(Gate):
    """Everything is accepted: what the method is without a gate."""

    def familiarity(self, images: Tensor, classes: int, network: str) -> None:
        """Know nothing."""
        return

    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Accept all."""
        return torch.ones_like(scores["past"][:, 0], dtype=torch.bool)


class TruthGate(OpenGate):
    """An oracle, for diagnosis only: accepts exactly the images that are of past classes."""

    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Look at the truth, which the engine gives to methods that declare this need."""
        return (scores[TRUTH] >= 0) & (scores[TRUTH] < task.past)


def make_gate(config: RunConfig, method: Method, detector: FamiliarityDetector | None) -> Gate:
    """Return the configured gate."""
    if detector is not None:
        return DetectorGate(method, detector)
    gates: dict[str, type[SoftmaxGate | EnergyGate | OpenGate]] = {
        "softmax": SoftmaxGate,
        "energy": EnergyGate,
        "everything": OpenGate,
        "truth": TruthGate,
    }
    return gates[config.gate](method)
