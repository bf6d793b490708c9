"""Metrics: pure functions on NumPy arrays; accuracies, shares, rates and Ω in percent.

Tasks and classes are numbered in learning order. Matrices have a row for each task learned and a
column for each task tested, NaN above the diagonal. A figure that cannot be measured, such as the
quality of pseudo-labels where none was accepted, is `None`.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import atan, exp, lgamma, pi, sqrt
from statistics import fmean, stdev
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distillmatch.errors import ConfigError

Floats = NDArray[np.float64]
PUBLISHED_RUNS = 3
"""Runs behind a published mean and deviation."""
LEVEL = 0.05
"""Of the two-sided test for agreement."""
Verdict = Literal["agrees", "higher", "lower"]


def task_accuracies(
    logits: NDArray[np.floating], labels: NDArray[np.integer], task_sizes: Sequence[int], task: int
) -> tuple[Floats, Floats]:
    """Return row i of R and of A after task i, counted from one (eq. 12 and 8).

    R[i,n] is the accuracy on task n's test images predicting among all classes seen, A[i,n] among
    task n's classes only, for n = 1 … i. `logits` has a row for each test image and a column for
    each class in learning order, as `labels` number them; images of later tasks are left out.
    """
    ends = list(accumulate(task_sizes[:task], initial=0))
    rows = []
    for n, (first, end) in enumerate(pairwise(ends), 1):
        tested = (labels >= first) & (labels < end)
        among = ((0, ends[-1]), (first, end))
        rows.append([_accuracy(logits, labels, tested, *one, f"task {n}") for one in among])
    among_seen, among_task = np.array(rows).T
    return among_seen, among_task


def prefix_accuracies(
    logits: NDArray[np.floating], labels: NDArray[np.integer], task_sizes: Sequence[int], task: int
) -> Floats:
    """Return row i of A[i,1:n] after task i, counted from one.

    A[i,1:n] is the accuracy on the test images of tasks 1 … n predicting among the classes of tasks
    1 … n, for n = 1 … i. Only `omega_double_sum` needs it; its last entry is the overall accuracy.
    """
    ends = list(accumulate(task_sizes))[:task]
    return np.array(
        [_accuracy(logits, labels, labels < end, 0, end, "tasks so far") for end in ends]
    )


def _accuracy(
    logits: NDArray[np.floating],
    labels: NDArray[np.integer],
    chosen: NDArray[np.bool_],
    first: int,
    end: int,
    where: str,
) -> float:
    """Return the accuracy on the chosen images, predicting among the classes from first to end."""
    if not chosen.any():
        raise ConfigError(f"{where}: there are no test images to measure accuracy on")
    predicted = first + logits[chosen, first:end].argmax(axis=1)
    return float(100 * np.mean(predicted == labels[chosen]))


def accuracy_matrix(rows: Sequence[ArrayLike]) -> Floats:
    """Return rows of 1, 2, … N entries as an N × N matrix with NaN above the diagonal."""
    matrix = np.full((len(rows), len(rows)), np.nan)
    for i, row in enumerate(rows):
        matrix[i, : i + 1] = row
    return matrix


def overall_accuracies(seen: Floats, test_counts: ArrayLike) -> Floats:
    """Return acc(1..i), the accuracy over all test images of the tasks learned, after each task i.

    `seen` is R, so it is the mean of R[i,1] … R[i,i] weighted by the tasks' test images. The last
    is A_N.
    """
    counts = np.asarray(test_counts, dtype=np.float64)
    return np.array([np.average(row[:i], weights=counts[:i]) for i, row in enumerate(seen, 1)])


def omega_curve(accuracies: ArrayLike, offline_accuracies: ArrayLike) -> Floats | None:
    """Return Ω up to each task: the running mean of acc(1..i) / acc_offline(1..i).

    It is `None` where an offline accuracy is 0, for nothing can be measured against it.
    """
    reached, offline = np.asarray(accuracies, float), np.asarray(offline_accuracies, float)
    if not offline.all():
        return None
    return np.asarray(100 * np.cumsum(reached / offline) / np.arange(1, len(offline) + 1))


def omega(accuracies: ArrayLike, offline_accuracies: ArrayLike) -> float | None:
    """Return Ω = mean over i of acc(1..i) / acc_offline(1..i) (eq. 9 as it is used)."""
    curve = omega_curve(accuracies, offline_accuracies)
    return None if curve is None else float(curve[-1])


def omega_double_sum(
    prefix: Floats, offline_accuracies: ArrayLike, task_sizes: Sequence[int]
) -> float | None:
    """Return Ω by the double sum of eq. 9 as it is printed.

    Ω = (1/N) Σ_i Σ_{n≤i} |T_n| / |T_1:i| · A[i,1:n] / A_offline[1:n]

    `prefix` holds A[i,1:n], rows of `prefix_accuracies`; the offline model of stage n, trained on
    tasks 1 … n, gives A_offline[1:n]. |T_n| counts classes.
    """
    offline, sizes = np.asarray(offline_accuracies, float), np.asarray(task_sizes, float)
    if not offline.all():
        return None
    return float(100 * np.mean(overall_accuracies(prefix / offline, sizes)))


def stages_of(
    accuracies: Sequence[float], stage_sizes: Sequence[int], task_sizes: Sequence[int]
) -> list[float] | None:
    """Return a bound's accuracy where each task ends, or `None` if one ends between its stages.

    A stage learns the labeled images of all classes so far, however they are cut into tasks.
    """
    after = dict(zip(accumulate(stage_sizes), accuracies, strict=False))
    wanted = list(accumulate(task_sizes))
    return [after[end] for end in wanted] if after.keys() >= set(wanted) else None


def backward_transfer(within: Floats) -> float:
    """Return BWT = mean over n < N of A[N,n] - A[n,n] (eq. 10); 0 with a single task.

    `within` is A, the accuracies among each task's own classes.
    """
    if len(within) < 2:
        return 0.0
    return float(np.mean(within[-1, :-1] - np.diagonal(within)[:-1]))


def forgetting(seen: Floats, task_sizes: Sequence[int]) -> float:
    """Return FGT (eq. 11); 0 with a single task.

    FGT = 1/(N-1) Σ_{i≥2} Σ_{n<i} |T_n| / |T_1:i| · (R[n,n] - R[i,n])

    `seen` is R. |T_n| counts classes. Each inner sum's weights leave out task i, so they add up to
    less than one.
    """
    if len(seen) < 2:
        return 0.0
    sizes, first = np.asarray(task_sizes, dtype=np.float64), np.diagonal(seen)
    lost = [
        np.sum(sizes[:i] * (first[:i] - seen[i, :i])) / np.sum(sizes[: i + 1])
        for i in range(1, len(seen))
    ]
    return float(np.mean(lost))


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


def share_at(scores: ArrayLike, threshold: float) -> float | None:
    """Return the share of scores that reach a threshold: TPR of seen classes, FPR of unseen."""
    return _share(np.ravel(scores) >= threshold)


def pseudo_label_quality(
    accepted: NDArray[np.bool_],
    pseudo_labels: NDArray[np.integer],
    true_labels: NDArray[np.integer],
    past: int,
) -> tuple[float | None, float | None, float | None]:
    """Return the share accepted and, of these, those of past classes and those labeled right.

    Labels are in learning order, so the past classes are those below `past`. The truth is for
    diagnosis only; an accepted image whose truth is unknown (negative) counts for neither share.
    """
    judged = accepted & (true_labels >= 0)
    truth = true_labels[judged]
    right = truth == pseudo_labels[judged]
    return _share(accepted), _share(truth < past), _share(right)


def _share(chosen: NDArray[np.bool_]) -> float | None:
    return float(100 * np.mean(chosen)) if chosen.size else None


def equivalent_coreset(budget: Sequence[tuple[int, float]], reached: float) -> float | None:
    """Return how many images Base must store to reach an Ω; `budget` has its Ω by coreset size.

    Base's Ω is taken as linear between its measured coreset sizes; the smallest size that reaches
    Ω counts. It is the smallest size measured where Base reaches Ω there already, and `None` where
    no measured size does.
    """
    before: tuple[int, float] | None = None
    for size, omega_of_base in sorted(budget):
        if omega_of_base >= reached:
            if before is None:
                return float(size)
            step = (reached - before[1]) / (omega_of_base - before[1])
            return before[0] + step * (size - before[0])
        before = size, omega_of_base
    return None


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and standard deviation over seeds, the deviation `None` for a single one.

    The deviation is the sample's (divisor count - 1): seeds are a sample of all seeds.
    """
    return fmean(values), stdev(values) if len(values) > 1 else None


def agreement(mean: float, deviation: float, values: Sequence[float]) -> Verdict:
    """Return whether figures measured here agree with a published mean and deviation.

    The published deviation is of three runs, divided by three. Several seeds are compared by
    Welch's t-test on means; a single one by the t-interval, with two degrees of freedom, of one
    more run like the published ones. A fixed number of deviations would call chance a difference in
    three of ten perfect reproductions.
    """
    ours, own = mean_and_deviation(values)
    sample = deviation * sqrt(PUBLISHED_RUNS / (PUBLISHED_RUNS - 1))
    of_theirs = sample**2 / PUBLISHED_RUNS
    if own is None:
        of_ours, degrees = sample**2, float(PUBLISHED_RUNS - 1)
    else:
        of_ours, degrees = own**2 / len(values), 1.0
        spread = of_theirs**2 / (PUBLISHED_RUNS - 1) + of_ours**2 / (len(values) - 1)
        if spread > 0:
            degrees = (of_theirs + of_ours) ** 2 / spread
    difference, variance = ours - mean, of_theirs + of_ours
    if variance == 0:
        differs = abs(difference) > 1e-9
    else:
        differs = p_value(difference / sqrt(variance), degrees) < LEVEL
    return ("higher" if difference > 0 else "lower") if differs else "agrees"


def p_value(t: float, degrees: float) -> float:
    """Return the two-sided p-value of Student's t.

    By Simpson's rule over angles, t = √ν tan θ, so that the tail is a finite interval: SciPy would
    be needed for nothing else.
    """
    scale = 2 * exp(lgamma((degrees + 1) / 2) - lgamma(degrees / 2)) / sqrt(pi)
    angles, width = np.linspace(atan(abs(t) / sqrt(degrees)), pi / 2, 2001, retstep=True)
    density = np.maximum(np.cos(angles), 0) ** (degrees - 1)
    weights = np.where(np.arange(2001) % 2, 4, 2)
    weights[[0, -1]] = 1
    return min(1.0, float(scale * weights @ density * width / 3))
