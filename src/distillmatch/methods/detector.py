"""The detector of familiar images (DeConf, Hsu et al. 2020): training, calibration, scores."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.config.run import EpsilonRule
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
from distillmatch.methods.parts import HIGH_RATE, by_past_statistics, distils_in_step
from distillmatch.methods.schedule import detector_schedule
from distillmatch.networks import Detector

EPSILONS: dict[EpsilonRule, tuple[float, ...]] = {
    "highest": (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08),
    "lowest-halved": (0.001, 0.002, 0.0025, 0.004, 0.005, 0.08),
    "none": (0.0,),
}
"""Sizes of the input perturbation that each rule tries, in units of the normalised images.

Those of `lowest-halved` are the release's. With 0 among them it would be 0, which moves no score.
"""
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

        `score_unlabeled` must say what the loss needs.
        """
        config = self.method.config
        schedule = detector_schedule(config, HIGH_RATE)
        past = config.detector_losses == "labels-and-past" and task.past > 0
        return Training(
            name="detector",
            network=self.network,
            loss=loss,
            schedule=schedule,
            labeled="first-half",
            unlabeled=past,
            clip=config.clip,
            score_images=self.ask_past if past and not distils_in_step(config) else None,
            score_unlabeled=score_unlabeled if past else None,
        )

    def calibrate(self, passes: Passes, task: TaskInfo) -> None:
        """Choose ε, then set τ_OoD to the score that δ of the held-out images reach."""
        config = self.method.config
        frozen = self.method.frozen_copy("past detector", of="detector")
        assert isinstance(frozen, Detector)

        def at(*epsilons: float) -> Callable[[Tensor], Scores]:
            return lambda images: {SCORE: perturbed_scores(frozen, images, task.seen, epsilons)}

        held_out = held_out_images(passes)
        tried = EPSILONS[config.epsilon_rule]
        means = passes.score(at(*tried), held_out)[SCORE].mean(dim=0).tolist()
        epsilon = choose_epsilon(tried, means, config.epsilon_rule)
        self.method.values["epsilon"] = epsilon
        scores = passes.score(at(epsilon), held_out, CALIBRATION_VIEWS)[SCORE][:, 0]
        rate = true_positive_rate(config, task.number + 1)
        self.method.values["threshold"] = float(threshold_at_tpr(scores, rate))

    def ask_past(self, images: Tensor) -> Scores:
        """Return the logits of the last task's detector, of labelled images."""
        return self._logits(images, labeled=True)

    def ask_about_unlabeled(self, images: Tensor) -> Scores:
        """Return its logits of unlabelled images, where their scores are known already."""
        return self._logits(images, labeled=False)

    def _logits(self, images: Tensor, *, labeled: bool) -> Scores:
        frozen = self.method.networks["past detector"]

        def ask(images: Tensor) -> Scores:
            return {DETECTOR_LOGITS: frozen(images)}

        return by_past_statistics(self.method.config, ask, images, [frozen], labeled=labeled)

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


def true_positive_rate(config: RunConfig, learned: int) -> float:
    """Return δ, the share of familiar images that a gate is set to accept after so many tasks.

    A growing one is the share of the tasks that will be past ones among those seen in the next: the
    more of what is shown is known, the less is won by rejecting.
    """
    rate = config.true_positive_rate or (0.05 if config.coreset else 0.5)
    if config.true_positive_rate_rule == "growing":
        rate = max(rate, learned / (learned + 1))
    return rate


def perturbed_scores(
    detector: Detector, images: Tensor, classes: int, epsilons: Sequence[float]
) -> Tensor:
    """Return max_k h_k of images moved by ε · sign(∂ score / ∂ image), a column for each ε."""
    similarities, _, gradient = _with_gradient(detector, images, classes, any(epsilons))
    return torch.stack(
        [_score(detector, images, classes, e, similarities, gradient) for e in epsilons], dim=1
    )


def score_and_logits(
    detector: Detector, images: Tensor, classes: int, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return the perturbed score, and the logits of the images as they are.

    The pass by which the perturbation is found gives the logits too.
    """
    similarities, divisor, gradient = _with_gradient(detector, images, classes, epsilon != 0.0)
    score = _score(detector, images, classes, epsilon, similarities, gradient)
    return score, similarities / divisor


def _with_gradient(
    detector: Detector, images: Tensor, classes: int, wanted: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return similarities, the divisor and, if it is wanted, the gradient of the score."""
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
