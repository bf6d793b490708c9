"""Losses, weights and scores: one pure function for each equation.

They take batches of fixed shape, with a mask where only some rows count, and never ask the device
for a number, so a step made of them can be captured as a graph. Logits are in float32 (or float64);
their columns are class slots in the order the classes are learned, so the classes of past tasks are
the first `past` columns and all classes seen so far the first `seen`. What a frozen model gives is
a target: no gradient flows to it.
"""

from distillmatch.losses.classification import (
    class_weights,
    consistency_loss,
    labels_where,
    pseudo_labels,
    weighted_cross_entropy_sum,
    with_pseudo_labels,
)
from distillmatch.losses.distillation import (
    confidence_calibration,
    ensemble_target,
    new_task_distillation,
    past_distillation,
    per_task_distillation,
    soft_global_distillation,
)
from distillmatch.losses.scores import (
    choose_epsilon,
    max_similarity,
    perturb,
    softmax_confidence,
    threshold_at_fpr,
    threshold_at_tpr,
)

__all__ = [
    "choose_epsilon",
    "class_weights",
    "confidence_calibration",
    "consistency_loss",
    "ensemble_target",
    "labels_where",
    "max_similarity",
    "new_task_distillation",
    "past_distillation",
    "per_task_distillation",
    "perturb",
    "pseudo_labels",
    "soft_global_distillation",
    "softmax_confidence",
    "threshold_at_fpr",
    "threshold_at_tpr",
    "weighted_cross_entropy_sum",
    "with_pseudo_labels",
]
