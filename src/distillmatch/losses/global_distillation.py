"""Soft global distillation (Lee et al., 2019): two teachers become one target over all classes."""

from math import log
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from distillmatch.losses import kernels
from distillmatch.losses.fused import takes, takes_rows
from distillmatch.losses.reductions import masked_mean, masked_sum

NewClassShare = Literal["new-model", "past-model"]


def ensemble_target(past_probabilities: Tensor, new_probabilities: Tensor) -> Tensor:
    """Return the ensemble Q over the seen classes, past ones first.

    With p the past model's softmax over the past classes, p_max its largest entry, c the softmax
    over the m new classes, s = past + m, and e = (1 - p_max) · m / (s - 1):

    Q = p_max where p is largest; p_k · (s - m - 1) / (s - 1) for the other past classes;
    e · c_k for the new classes.

    Each row sums to one.
    """
    past, new = past_probabilities.shape[1], new_probabilities.shape[1]
    others = past + new - 1
    largest, where = past_probabilities.max(dim=1, keepdim=True)
    past_part = (past_probabilities * ((past - 1) / others)).scatter(1, where, largest)
    new_part = new_probabilities * ((1 - largest) * (new / others))
    return torch.cat([past_part, new_part], dim=1).detach()


def ensemble_target_from_logits(
    past_logits: Tensor,
    new_logits: Tensor,
    past: int,
    seen: int,
    new_class_share: NewClassShare = "new-model",
) -> Tensor:
    """Return Q from the logits of the past model θ_{n-1} and the new task's model C.

    `new_class_share` names whose softmax over the new slots divides e: `new-model` is C's, as Lee
    et al. have it; `past-model` is the past model's own, as the authors' release has it.
    """
    new_source = new_logits if new_class_share == "new-model" else past_logits
    return ensemble_target(
        past_logits[:, :past].softmax(dim=1), new_source[:, past:seen].softmax(dim=1)
    )


def soft_global_distillation(logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return Σ_b KL( Q_b ‖ softmax(z_b) ) at temperature 1, a sum over images.

    `logits` are cut to the seen classes, the columns of `target`.
    """
    if takes(logits, target) and logits.shape == target.shape and takes_rows(logits, mask):
        groups = kernels.Groups((logits.shape[1],), mean=False)
        return kernels.divergence(logits, groups, target=target, mask=mask)
    log_probabilities, target = logits.log_softmax(dim=1), target.detach()
    if mask is None:
        return functional.kl_div(log_probabilities, target, reduction="sum")
    rows = functional.kl_div(log_probabilities, target, reduction="none")
    return masked_sum(rows.sum(dim=1), mask)


def confidence_calibration(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return how far the new task's model is from knowing nothing about other images.

    mean_b ( - (1/m) Σ_k log p_b,k - log m ), the divergence KL(uniform ‖ p_b), with p_b the softmax
    of `logits`, which are cut to the m new classes.
    """
    if takes(logits) and takes_rows(logits, mask):
        return kernels.divergence(logits, kernels.Groups((logits.shape[1],)), mask=mask)
    mean_log_probability = logits.log_softmax(dim=1).mean(dim=1)
    return masked_mean(-log(logits.shape[1]) - mean_log_probability, mask)
