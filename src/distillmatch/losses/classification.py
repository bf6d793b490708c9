"""Losses on labels and pseudo-labels, and their class weights."""

import torch
from torch import Tensor
from torch.nn import functional

from distillmatch.errors import ConfigError

PASSED_OVER = -100
"""The label of a row that does not count: torch's cross entropy ignores it."""


def weighted_cross_entropy_sum(
    logits: Tensor,
    labels: Tensor,
    class_weights: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Cross entropy weighted by class and summed: ℓ_s (eq. 6), and ℓ_pl with a mask (eq. 7).

    Σ_b 1(mask_b) · w(y_b) · CE(y_b, softmax(z_b))

    `logits` are cut to the seen classes. Without `class_weights` every class weighs 1. The label of
    a row outside the mask may be any number.
    """
    weights = None if class_weights is None else class_weights.to(logits.dtype)
    if mask is not None:
        labels = labels_where(mask, labels)
    return functional.cross_entropy(
        logits, labels, weights, ignore_index=PASSED_OVER, reduction="sum"
    )


def labels_where(mask: Tensor, labels: Tensor) -> Tensor:
    """Return the labels where the mask is true, and elsewhere one that cross entropy ignores."""
    return torch.where(mask, labels, PASSED_OVER)


def with_pseudo_labels(
    labels: Tensor, pseudo_labels: Tensor, accepted: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the labels and then the pseudo-labels, for one sum over both, and B + B_pl.

    So eqs. 6 and 7 are one sum (`weighted_cross_entropy_sum`; eq. 7 is its part that has
    pseudo-labels). One that is not accepted is ignored and not counted.
    """
    both = torch.cat([labels, labels_where(accepted, pseudo_labels)])
    return both, len(labels) + accepted.sum()


def class_weights(
    label_counts: Tensor,
    pseudo_label_counts: Tensor | None = None,
    smoothing: float = 1.0,
    cap: float = 10.0,
) -> Tensor:
    """Return the class weights w(k), inverse class frequencies (eq. 3).

    w(k) = min( cap, (1/K) · Σ_j c_j / c_k )

    c_k counts the labels k and the accepted pseudo-labels k, plus `smoothing`. K is the number of
    classes counted, those seen so far. The total is that of the smoothed counts, so before the cap
    the mean weight over images so counted is exactly 1.
    """
    counts = label_counts if pseudo_label_counts is None else label_counts + pseudo_label_counts
    if not counts.is_floating_point():
        counts = counts.to(torch.get_default_dtype())
    counts = counts + smoothing
    return (counts.mean() / counts).clamp(max=cap)


def pseudo_labels(teacher_logits: Tensor, past: int) -> Tensor:
    """Return the hard labels q̂_b = argmax θ_{n-1}(α(u_b)) over the past classes."""
    return teacher_logits.detach()[:, :past].argmax(dim=1)


def consistency_loss(
    weak_logits: Tensor, strong_logits: Tensor, threshold: float, past: int = 0
) -> Tensor:
    """Consistency of strong with weak views of unlabeled images, ℓ_ul (eq. 4).

    (1/μB) Σ_b 1(max q_b ≥ τ_FM) · CE(argmax q_b, softmax(strong_b)),  q_b = softmax(weak_b)

    The mean is over the whole batch, confident or not; no gradient flows to the weak views. With
    `past` the first so many classes are left out of q_b: labels are among the new ones alone.
    """
    if len(weak_logits) != len(strong_logits):
        raise ConfigError(
            f"consistency_loss was given {len(weak_logits)} weak and {len(strong_logits)} strong "
            "views of the same images: a method has these with strong_views = True"
        )
    confidence, labels = weak_logits.detach()[:, past:].softmax(dim=1).max(dim=1)
    labels = labels + past if past else labels
    labels.masked_fill_(confidence < threshold, PASSED_OVER)
    return weighted_cross_entropy_sum(strong_logits, labels) / max(1, len(strong_logits))
