"""Metrics: pure functions on NumPy arrays; accuracies, shares, rates and Ω in percent.

Tasks and classes are numbered in learning order. Matrices have a row for each task learned and a
column for each task tested, NaN above the diagonal. A figure that cannot be measured, such as the
quality of pseudo-labels where none was accepted, is `None`.
"""

from distillmatch.metrics.accuracy import (
    accuracy_matrix,
    backward_transfer,
    final_accuracy,
    forgetting,
    omega,
    omega_curve,
    omega_double_sum,
    overall_accuracies,
    prefix_accuracies,
    task_accuracies,
)
from distillmatch.metrics.agreement import Verdict, agreement, mean_and_deviation
from distillmatch.metrics.detection import (
    PseudoLabelQuality,
    auroc,
    pseudo_label_quality,
    rates_at_threshold,
)
from distillmatch.metrics.memory import equivalent_coreset, memory_saving

__all__ = [
    "PseudoLabelQuality",
    "Verdict",
    "accuracy_matrix",
    "agreement",
    "auroc",
    "backward_transfer",
    "equivalent_coreset",
    "final_accuracy",
    "forgetting",
    "mean_and_deviation",
    "memory_saving",
    "omega",
    "omega_curve",
    "omega_double_sum",
    "overall_accuracies",
    "prefix_accuracies",
    "pseudo_label_quality",
    "rates_at_threshold",
    "task_accuracies",
]
