"""The detector of familiar images (DeConf, Hsu et al. 2020): calibration and scores."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from distillmatch import losses
from distillmatch.config import RunConfig
from distillmatch.methods.method import ImageSet, Method, Passes, TaskInfo
from distillmatch.networks import Detector

EPSILONS = {
    "cosine": (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08),
    "scaled-cosine": (0.001, 0.002, 0.0025, 0.004, 0.005, 0.08),
}
"""Sizes of the input perturbation that are tried with each head, in units of normalized images."""
CALIBRATION_VIEWS = 4  # of each held-out image, on which the threshold is set
TPR, TPR_WITH_CORESET = 0.5, 0.05  # δ, the share of held-out images that the threshold accepts


class Scores(NamedTuple):
    """Scores of images, a column for each perturbation that is tried."""

    scores: Tensor


class FamiliarityDetector:
    """A second network φ, trained on half of the labels and calibrated on the other half.

    `past detector` is its frozen copy from the end of the last task, by which images are scored
    while the next task is learned. `rate` is δ, the share of held-out images to be accepted.
    """

    def __init__(self, method: Method, rate: float) -> None:
        self.method = method
        self.rate = rate
        method.networks["detector"] = method.build("detector", method.recipe.detector)

    def calibrate(self, passes: Passes, task: TaskInfo) -> None:
        """Choose ε, then set τ_OoD to the score that the share δ of held-out images reach."""
        self.method.frozen_copy("past detector", of="detector")
        values, head = self.method.values, self.method.recipe.detector
        held_out, tried = held_out_images(passes), EPSILONS[head]

        def scores(epsilons: Sequence[float], views: int = 1) -> Tensor:
            def score(images: Tensor, task: TaskInfo) -> Scores:
                return Scores(self.scores_and_logits(images, task.seen, epsilons)[0])

            found: Tensor = passes.run(score, held_out, views).scores
            return found

        rule: losses.EpsilonRule = "highest" if head == "cosine" else "lowest-halved"
        values["epsilon"] = losses.choose_epsilon(tried, scores(tried).mean(dim=0).tolist(), rule)
        chosen = scores([values["epsilon"]], CALIBRATION_VIEWS)[:, 0]
        values["threshold"] = float(losses.threshold_at_tpr(chosen, self.rate))

    def score_and_logits(self, images: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Return scores and logits of images by the detector of the last task."""
        scores, logits = self.scores_and_logits(images, classes, [self.method.values["epsilon"]])
        return scores[:, 0], logits

    def scores_and_logits(
        self, images: Tensor, classes: int, epsilons: Sequence[float]
    ) -> tuple[Tensor, Tensor]:
        """Return scores of moved images by the last task's detector, and logits of the images."""
        network = self.method.networks["past detector"]
        assert isinstance(network, Detector)
        return scores_and_logits(network, images, classes, epsilons)


def perturbed_scores(
    detector: Detector, images: Tensor, classes: int, epsilons: Sequence[float]
) -> Tensor:
    """Return max_k h_k of images moved by ε · sign(∂ score / ∂ image), a column for each ε."""
    return scores_and_logits(detector, images, classes, epsilons)[0]


def scores_and_logits(
    detector: Detector, images: Tensor, classes: int, epsilons: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return the scores of moved images, and the logits of the pass that finds the gradient."""
    moving, moved = any(epsilons), images.detach()
    with torch.set_grad_enabled(moving):
        similarities, divisor = detector.parts(moved.requires_grad_(moving))
        score = losses.max_similarity(similarities, classes)
        gradient = torch.autograd.grad(score.sum(), moved)[0] if moving else moved
    columns = []
    with torch.no_grad():
        for epsilon in epsilons:
            # Not moved, its score is already known.
            if epsilon:
                there = detector.similarities(losses.perturb(images, gradient, epsilon))
            columns.append(losses.max_similarity(there, classes) if epsilon else score)
        return torch.stack(columns, dim=1), similarities / divisor


def held_out_images(passes: Passes) -> ImageSet:
    """Return the labeled images that the detector was not trained on.

    With one label a class nothing is held out; scores of trained images are better than none.
    """
    return "second-half" if passes.label_counts("second-half").any() else "labeled"


def true_positive_rate(config: RunConfig, chosen: float | None) -> float:
    """Return δ: as chosen, or the paper's."""
    return chosen or (TPR_WITH_CORESET if config.coreset else TPR)
