"""The detector of familiar images (DeConf, Hsu et al. 2020): training, calibration, scores."""

from collections.abc import Callable

import torch
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.losses import (
    choose_epsilon,
    max_similarity,
    perturb,
    threshold_at_tpr,
)
from distillmatch.methods.method import (
    Batch,
    ImageSet,
    Method,
    Passes,
    Scores,
    TaskInfo,
    Training,
)
from distillmatch.methods.parts import HIGH_RATE
from distillmatch.methods.schedule import detector_schedule
from distillmatch.networks import Detector

EPSILONS = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)
"""Sizes of the input perturbation that are tried, in units of the normalised images."""
CALIBRATION_VIEWS = 4
"""Weak views of each held-out image that the threshold is set on."""
SCORE = "score"
DETECTOR_LOGITS = "detector logits"


class FamiliarityDetector:
    """A second network φ, trained on half of the labels and calibrated on the other half.

    `past detector` is its frozen copy from the end of the last task, by which images are scored
    while the next task is learned.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        method.networks["detector"] = method.build("detector", method.config.similarity)

    @property
    def network(self) -> Detector:
        """The detector that is trained."""
        network = self.method.networks["detector"]
        assert isinstance(network, Detector)
        return network

    def training(
        self,
        task: TaskInfo,
        loss: Callable[[Batch], Tensor],
        score_unlabeled: Callable[[Tensor], Scores],
    ) -> Training:
        """Return the detector's training in a task, by a loss that the method gives.

        `score_unlabeled` must say what `ask` does, beside what else the loss needs.
        """
        schedule = detector_schedule(self.method.config, HIGH_RATE)
        past = self.method.config.detector_losses == "labels-and-past" and task.past > 0
        return Training(
            name="detector",
            network=self.network,
            loss=loss,
            schedule=schedule,
            labeled="first-half",
            unlabeled=past,
            clip=self.method.config.clip,
            score_images=self.ask_past if past else None,
            score_unlabeled=score_unlabeled if past else None,
        )

    def calibrate(self, passes: Passes, task: TaskInfo) -> None:
        """Choose ε, then set τ_OoD to the score that δ of the held-out images reach."""
        config = self.method.config
        frozen = self.method.frozen_copy("past detector", of="detector")
        assert isinstance(frozen, Detector)

        def at(epsilon: float) -> Callable[[Tensor], Scores]:
            return lambda images: {SCORE: perturbed_score(frozen, images, task.seen, epsilon)}

        held_out = held_out_images(passes)
        means = [float(passes.score(at(e), held_out)[SCORE].mean()) for e in EPSILONS]
        self.method.values["epsilon"] = choose_epsilon(EPSILONS, means, config.epsilon_rule)
        scores = passes.score(at(self.method.values["epsilon"]), held_out, CALIBRATION_VIEWS)[SCORE]
        rate = true_positive_rate(config)
        self.method.values["threshold"] = float(threshold_at_tpr(scores, rate))

    def ask_past(self, images: Tensor) -> Scores:
        """Return the logits of the last task's detector."""
        return {DETECTOR_LOGITS: self.method.networks["past detector"](images)}

    def ask(self, images: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Return scores and logits of images by the detector of the last task."""
        frozen = self.method.networks["past detector"]
        assert isinstance(frozen, Detector)
        return score_and_logits(frozen, images, classes, self.method.values["epsilon"])


def held_out_images(passes: Passes) -> ImageSet:
    """Return the labelled images that the detector was not trained on.

    With one label a class nothing is held out; scores of trained images are better than none.
    """
    return "second-half" if passes.label_counts("second-half").any() else "labeled"


def true_positive_rate(config: RunConfig) -> float:
    """Return δ, the share of familiar images that a gate is set to accept."""
    return config.true_positive_rate or (0.05 if config.coreset else 0.5)


def perturbed_score(detector: Detector, images: Tensor, classes: int, epsilon: float) -> Tensor:
    """Return max_k h_k of images moved by ε · sign(∂ score / ∂ image)."""
    return score_and_logits(detector, images, classes, epsilon)[0]


def score_and_logits(
    detector: Detector, images: Tensor, classes: int, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return the perturbed score, and the logits of the images as they are.

    The pass by which the perturbation is found gives the logits too.
    """
    if epsilon == 0.0:
        with torch.no_grad():
            similarities, divisor = detector.parts(images)
            return max_similarity(similarities, classes), similarities / divisor
    with torch.enable_grad():
        moved = images.detach().requires_grad_(True)
        similarities, divisor = detector.parts(moved)
        score = max_similarity(similarities, classes)
        (gradient,) = torch.autograd.grad(score.sum(), moved)
    with torch.no_grad():
        moved = perturb(images, gradient, epsilon)
        score = max_similarity(detector.similarities(moved), classes)
        return score, similarities.detach() / divisor.detach()
