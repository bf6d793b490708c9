"""How well familiar images are told from strange ones, in percent."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


def auroc(in_scores: ArrayLike, out_scores: ArrayLike) -> float | None:
    """Return the chance that an image of a seen class scores above one of an unseen class.

    A tie counts half. With rank sum U of the `in_scores` among all, ties at their mean rank, it is
    (U - n(n+1)/2) / (n·m). It is `None` where either side is empty, as after the last task.
    """
    inside, outside = np.ravel(in_scores), np.ravel(out_scores)
    n, m = len(inside), len(outside)
    if n == 0 or m == 0:
        return None
    _, place, ties = np.unique(
        np.concatenate([inside, outside]), return_inverse=True, return_counts=True
    )
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    return float(100 * (ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def rates_at_threshold(
    in_scores: ArrayLike, out_scores: ArrayLike, threshold: float
) -> tuple[float | None, float | None]:
    """Return TPR and FPR: the shares of seen and of unseen images that reach the threshold."""
    return (
        _share(np.ravel(in_scores) >= threshold),
        _share(np.ravel(out_scores) >= threshold),
    )


@dataclass(frozen=True)
class PseudoLabelQuality:
    """What the gate let through in one task; shares in percent, `None` where there is no image."""

    accepted: float | None
    """Accepted images among all unlabeled ones."""
    past: float | None
    """Images truly of a past class among the accepted."""
    right: float | None
    """Images whose pseudo-label is their class among the accepted."""


def pseudo_label_quality(
    accepted: NDArray[np.bool_],
    pseudo_labels: NDArray[np.integer],
    true_labels: NDArray[np.integer],
    past: int,
) -> PseudoLabelQuality:
    """Return the share accepted and, of these, those of past classes and those labeled right.

    Labels are in learning order, so the past classes are those below `past`. The truth is for
    diagnosis only; an accepted image whose truth is unknown (negative) counts for neither share.
    """
    judged = accepted & (true_labels >= 0)
    truth = true_labels[judged]
    return PseudoLabelQuality(
        accepted=_share(accepted),
        past=_share(truth < past),
        right=_share(truth == pseudo_labels[judged]),
    )


def _share(chosen: NDArray[np.bool_]) -> float | None:
    return float(100 * np.mean(chosen)) if chosen.size else None
