"""Distances in the space of features, by which an image's familiarity can be told."""

import torch
from torch import Tensor
from torch.nn import functional

LEAST_VARIANCE = 1e-6
"""Added to every variance, so that rows that are all alike have a distance from others too."""


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return μ_k, the mean of each class's rows; a class without any has no mean, NaN."""
    # A product, because sums by index come in any order on a GPU.
    members = functional.one_hot(labels, classes).to(features.dtype)
    return members.T @ features / members.sum(0).unsqueeze(1)


def shrunk_covariance(deviations: Tensor) -> Tensor:
    """Return (1 - ρ) S + ρ m I of n rows x_i, deviations from a mean (Ledoit and Wolf 2004).

    S = Σ_i x_i x_iᵀ / n has the mean variance m = tr S / d, and ρ is the share that is best for so
    few rows: Σ_i ‖x_i x_iᵀ - S‖² / n² over ‖S - m I‖², at most 1.
    """
    count, size = deviations.shape
    sample = deviations.T @ deviations / count
    unit = torch.eye(size, dtype=sample.dtype, device=sample.device)
    target = sample.trace() / size * unit
    spread = (sample - target).square().sum()
    of_rows = deviations.square().sum(1).square().sum() / count
    error = (of_rows - sample.square().sum()) / count
    share = torch.where(spread > 0, error / spread, 1.0).clamp(0, 1)
    return torch.lerp(sample, target, share) + LEAST_VARIANCE * unit


def whitening(covariance: Tensor) -> Tensor:
    """Return W with W Wᵀ = Σ⁻¹, so that ‖(a - b) W‖² is the Mahalanobis distance under Σ."""
    lower = torch.linalg.cholesky(covariance)
    unit = torch.eye(len(covariance), dtype=lower.dtype, device=lower.device)
    inverse: Tensor = torch.linalg.solve_triangular(lower, unit, upper=False)
    return inverse.T.contiguous()


def relative_mahalanobis(
    features: Tensor,
    means: Tensor,
    within: Tensor,
    background_mean: Tensor,
    background: Tensor,
) -> Tensor:
    """Return ‖(z - μ_0) W_0‖² - min_k ‖(z - μ_k) W‖², the relative Mahalanobis score.

    That is Lee et al.'s (2018) distance from the nearest class, W whitening what is within classes,
    less the distance from a background, by which Ren et al. (2021) take away what all images share:
    twice the log-likelihood ratio of two Gaussians, but for a constant. A class without a mean is
    near to nothing.
    """
    nearest = _squared_distances(features @ within, means @ within).amin(1)
    centered = (features - background_mean) @ background
    return centered.square().sum(1) - nearest


def _squared_distances(rows: Tensor, others: Tensor) -> Tensor:
    # Not by products of rows: of near points, their differences would be rounding.
    distances = torch.cdist(rows, others, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.square().nan_to_num(nan=torch.inf)
