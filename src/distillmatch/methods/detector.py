"""The detector of familiar images (DeConf, Hsu et al. 2020): calibration and scores."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from distillmatch.config import Recipe, RunConfig
from distillmatch.losses import choose_epsilon, max_similarity, perturb, threshold_at_tpr
from distillmatch.methods.method import ImageSet, Method, Passes, TaskInfo
from distillmatch.networks import Detector

EPSILONS = {
    "cosine": (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08),
    "scaled-cosine": (0.001, 0.002, 0.0025, 0.004, 0.005, 0.08),
}
"""Sizes of the input perturbation that are tried with each head, in units of normalized images.

With the scaled cosine half of the one with the lowest mean score is kept, so 0 is not among them.
"""
CALIBRATION_VIEWS = 4
"""Weak views of each held-out image that the threshold is set on."""
TPR, TPR_WITH_CORESET = 0.5, 0.05
"""δ, the share of held-out images that the threshold accepts."""


class Scores(NamedTuple):
    """Scores of images, a column for each perturbation that is tried."""

    scores: Tensor


class FamiliarityDetector:
    """A second network φ, trained on half of the labels and calibrated on the other half.

    `past detector` is its frozen copy from the end of the last task, by which images are scored
    while the next task is learned.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        method.networks["detector"] = method.build("detector", method.recipe.detector)

    @property
    def network(self) -> Detector:
        """The detector that is trained."""
        network = self.method.networks["detector"]
        assert isinstance(network, Detector)
        return network

    @property
    def past(self) -> Detector:
        """The detector of the last task."""
        network = self.method.networks["past detector"]
        assert isinstance(network, Detector)
        return network

    def calibrate(self, passes: Passes, task: TaskInfo, rate: float) -> None:
        """Choose ε, then set τ_OoD to the score that the share `rate` of held-out images reach."""
        self.method.frozen_copy("past detector", of="detector")
        held_out = held_out_images(passes)
        values, recipe = self.method.values, self.method.recipe
        tried = EPSILONS[recipe.detector]

        def try_all(images: Tensor, task: TaskInfo) -> Scores:
            return Scores(perturbed_scores(self.past, images, task.seen, tried))

        means = passes.run(try_all, held_out).scores.mean(dim=0).tolist()
        values["epsilon"] = epsilon_of(recipe, means)

        def score(images: Tensor, task: TaskInfo) -> Scores:
            return Scores(perturbed_scores(self.past, images, task.seen, [values["epsilon"]]))

        scores = passes.run(score, held_out, CALIBRATION_VIEWS).scores[:, 0]
        values["threshold"] = float(threshold_at_tpr(scores, rate))

    def score_and_logits(self, images: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Return scores and logits of images by the detector of the last task.

        The pass in which the perturbation is found gives the logits, too.
        """
        epsilon = self.method.values["epsilon"]
        similarities, divisor, gradient = _with_gradient(self.past, images, classes, epsilon != 0.0)
        score = _score(self.past, images, classes, epsilon, similarities, gradient)
        return score, similarities / divisor


def epsilon_of(recipe: Recipe, means: Sequence[float]) -> float:
    """Return the perturbation to use, given the mean score of held-out images at each one tried."""
    tried = EPSILONS[recipe.detector]
    return choose_epsilon(
        tried, means, "highest" if recipe.detector == "cosine" else "lowest-halved"
    )


def held_out_images(passes: Passes) -> ImageSet:
    """Return the labeled images that the detector was not trained on.

    With one label a class nothing is held out; scores of trained images are better than none.
    """
    return "second-half" if passes.label_counts("second-half").any() else "labeled"


def true_positive_rate(config: RunConfig, chosen: float | None) -> float:
    """Return δ: as chosen, or the paper's."""
    return chosen or (TPR_WITH_CORESET if config.coreset else TPR)


def perturbed_scores(
    detector: Detector, images: Tensor, classes: int, epsilons: Sequence[float]
) -> Tensor:
    """Return max_k h_k of images moved by ε · sign(∂ score / ∂ image), a column for each ε."""
    similarities, _, gradient = _with_gradient(detector, images, classes, any(epsilons))
    return torch.stack(
        [_score(detector, images, classes, e, similarities, gradient) for e in epsilons], dim=1
    )


def _with_gradient(
    detector: Detector, images: Tensor, classes: int, wanted: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return similarities, the divisor and, if wanted, the gradient of the score."""
    if not wanted:
        with torch.no_grad():
            return *detector.parts(images), None
    with torch.enable_grad():
        moved = images.detach().requires_grad_(True)
        similarities, divisor = detector.parts(moved)
        score = max_similarity(similarities, classes)
        (gradient,) = torch.autograd.grad(score.sum(), moved)
    return similarities.detach(), divisor.detach(), gradient


def _score(
    detector: Detector,
    images: Tensor,
    classes: int,
    epsilon: float,
    similarities: Tensor,
    gradient: Tensor | None,
) -> Tensor:
    """Return the score of images moved along a gradient; not moved, it is already known."""
    if epsilon and gradient is not None:
        with torch.no_grad():
            similarities = detector.similarities(perturb(images, gradient, epsilon))
    return max_similarity(similarities, classes)
