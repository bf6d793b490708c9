"""Losses, weights and scores: one pure function for each equation.

They take batches of fixed shape, with a mask where only some rows count, and never ask the device
for a number, so a step made of them can be captured as a graph. Logits are in float32 (or float64);
their columns are class slots in the order the classes are learned, so the classes of past tasks are
the first `past` columns and all classes seen so far the first `seen`. What a frozen model gives is
a target: no gradient flows to it.

On CUDA the losses of training are kernels of their own for float32 logits (kernels); what torch
makes of the same equation is their reference, and is used everywhere else.
"""

from distillmatch.losses.classification import (
    accepted,
    class_weights,
    consistency_loss,
    distillmatch_loss,
    hard_distillation,
    labels_where,
    log_mean_probabilities,
    pseudo_labels,
    soft_distillation_sum,
    weighted_cross_entropy_sum,
    with_pseudo_labels,
)
from distillmatch.losses.distances import (
    class_means,
    relative_mahalanobis,
    shrunk_covariance,
    whitening,
)
from distillmatch.losses.distillation import (
    new_task_distillation,
    past_distillation,
    per_task_distillation,
)
from distillmatch.losses.global_distillation import (
    confidence_calibration,
    ensemble_target,
    ensemble_target_from_logits,
    soft_global_distillation,
)
from distillmatch.losses.scores import (
    choose_epsilon,
    energy_score,
    max_similarity,
    perturb,
    softmax_confidence,
    standardized_sum,
    threshold_at_fpr,
    threshold_at_tpr,
)

__all__ = [
    "accepted",
    "choose_epsilon",
    "class_means",
    "class_weights",
    "confidence_calibration",
    "consistency_loss",
    "distillmatch_loss",
    "energy_score",
    "ensemble_target",
    "ensemble_target_from_logits",
    "hard_distillation",
    "labels_where",
    "log_mean_probabilities",
    "max_similarity",
    "new_task_distillation",
    "past_distillation",
    "per_task_distillation",
    "perturb",
    "pseudo_labels",
    "relative_mahalanobis",
    "shrunk_covariance",
    "soft_distillation_sum",
    "soft_global_distillation",
    "softmax_confidence",
    "standardized_sum",
    "threshold_at_fpr",
    "threshold_at_tpr",
    "weighted_cross_entropy_sum",
    "whitening",
    "with_pseudo_labels",
]
