"""Scores that tell familiar images from strange ones, and the calibration of their threshold."""

from collections.abc import Sequence
from math import ceil
from typing import Literal

from torch import Tensor

from distillmatch.errors import ConfigError


def max_similarity(similarities: Tensor, seen: int) -> Tensor:
    """Return the detector's score S(x) = max_k h_k(x) over the seen classes."""
    return similarities[:, :seen].amax(dim=1)


def softmax_confidence(logits: Tensor, seen: int) -> Tensor:
    """Return the largest softmax probability over the seen classes, the score of a classifier."""
    return logits[:, :seen].softmax(dim=1).amax(dim=1)


def perturb(inputs: Tensor, score_gradient: Tensor, epsilon: Tensor | float) -> Tensor:
    """Return x + ε · sign(∂S/∂x), the input moved to where its score is higher."""
    return inputs + epsilon * score_gradient.sign()


EpsilonRule = Literal["highest", "lowest-halved"]


def choose_epsilon(
    epsilons: Sequence[float], mean_scores: Sequence[float], rule: EpsilonRule = "highest"
) -> float:
    """Return the ε to use, given the mean score of the held-out images at each ε of a grid.

    `highest` takes the ε with the highest mean score, as DeConf does; `lowest-halved` takes half of
    the one with the lowest, as the authors' release does. Of equals the first is taken.
    """
    if len(epsilons) != len(mean_scores) or not epsilons:
        raise ValueError(f"{len(epsilons)} values of epsilon but {len(mean_scores)} mean scores")
    by_score = range(len(epsilons))
    if rule == "highest":
        return epsilons[max(by_score, key=mean_scores.__getitem__)]
    return epsilons[min(by_score, key=mean_scores.__getitem__)] / 2


def threshold_at_tpr(scores: Tensor, tpr: float) -> Tensor:
    """Return τ_OoD, the score that the share `tpr` of the held-out images reach.

    It is the ⌈tpr · count⌉-th highest score: the highest threshold that at least that share reach.
    """
    if not 0 < tpr <= 1:
        raise ConfigError(f"the true-positive rate must be more than 0 and at most 1, not {tpr}")
    if scores.numel() == 0:
        raise ConfigError("the detector has no held-out images to set its threshold on")
    return _reached_by(scores, tpr)


def threshold_at_fpr(scores: Tensor, fpr: float) -> Tensor:
    """Return the score that the share `fpr` of unknown images reach, ⌈fpr · count⌉ of them."""
    return _reached_by(scores, fpr)


def _reached_by(scores: Tensor, share: float) -> Tensor:
    count = scores.numel()
    # 0.07 · 100 is a little more than 7 in floating point.
    rank = max(1, ceil(share * count - 1e-9 * count))
    return scores.detach().flatten().sort(descending=True).values[rank - 1]
