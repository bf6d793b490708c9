"""Accuracy matrices over tasks and the figures made of them, in percent."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distillmatch.errors import ConfigError

Floats = NDArray[np.float64]


def task_accuracies(
    logits: NDArray[np.floating], labels: NDArray[np.integer], task_sizes: Sequence[int], task: int
) -> tuple[Floats, Floats]:
    """Return row i of R and of A after task i, counted from one (eq. 12 and 8).

    R[i,n] is the accuracy on task n's test images predicting among all classes seen, A[i,n] among
    task n's classes only, for n = 1 … i. `logits` has a row for each test image and a column for
    each class in learning order, as `labels` number them; images of later tasks are left out.
    """
    bounds = _bounds(task_sizes)
    among_seen, among_task = np.empty(task), np.empty(task)
    for n in range(task):
        first, end = bounds[n], bounds[n + 1]
        of_task = (labels >= first) & (labels < end)
        among_seen[n] = _accuracy(logits, labels, of_task, 0, bounds[task], f"task {n + 1}")
        among_task[n] = _accuracy(logits, labels, of_task, first, end, f"task {n + 1}")
    return among_seen, among_task


def prefix_accuracies(
    logits: NDArray[np.floating], labels: NDArray[np.integer], task_sizes: Sequence[int], task: int
) -> Floats:
    """Return row i of A[i,1:n] after task i, counted from one.

    A[i,1:n] is the accuracy on the test images of tasks 1 … n predicting among the classes of tasks
    1 … n, for n = 1 … i. Only `omega_double_sum` needs it; its last entry is the overall accuracy.
    """
    bounds = _bounds(task_sizes)
    return np.array(
        [
            _accuracy(logits, labels, labels < end, 0, end, f"tasks 1 to {n}")
            for n, end in enumerate(bounds[1 : task + 1], start=1)
        ]
    )


def accuracy_matrix(rows: Sequence[ArrayLike]) -> Floats:
    """Return rows of 1, 2, … N entries as an N × N matrix with NaN above the diagonal."""
    matrix = np.full((len(rows), len(rows)), np.nan)
    for i, row in enumerate(rows):
        matrix[i, : i + 1] = row
    return matrix


def overall_accuracies(seen: Floats, test_counts: Sequence[int]) -> Floats:
    """Return acc(1..i), the accuracy over all test images of the tasks learned, after each task i.

    `seen` is R, so it is the mean of R[i,1] … R[i,i] weighted by the tasks' test images.
    """
    counts = np.asarray(test_counts, dtype=np.float64)
    return np.array(
        [np.average(row[: i + 1], weights=counts[: i + 1]) for i, row in enumerate(seen)]
    )


def final_accuracy(seen: Floats, test_counts: Sequence[int]) -> float:
    """Return A_N, the accuracy over all test images after the last task; `seen` is R."""
    return float(overall_accuracies(seen, test_counts)[-1])


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
    offline = np.asarray(offline_accuracies, float)
    if not offline.all():
        return None
    sizes = np.asarray(task_sizes, dtype=np.float64)
    per_task = [
        np.average(row[: i + 1] / offline[: i + 1], weights=sizes[: i + 1])
        for i, row in enumerate(prefix)
    ]
    return float(100 * np.mean(per_task))


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
    sizes = np.asarray(task_sizes, dtype=np.float64)
    first = np.diagonal(seen)
    lost = [
        np.sum(sizes[:i] * (first[:i] - seen[i, :i])) / np.sum(sizes[: i + 1])
        for i in range(1, len(seen))
    ]
    return float(np.mean(lost))


def _bounds(task_sizes: Sequence[int]) -> list[int]:
    """Return the class slot at which each task begins, and the end of the last."""
    return [0, *(int(end) for end in np.cumsum(task_sizes))]


def _accuracy(
    logits: NDArray[np.floating],
    labels: NDArray[np.integer],
    chosen: NDArray[np.bool_],
    first: int,
    end: int,
    where: str,
) -> float:
    """Return the accuracy on the chosen images, predicting among the slots from first to end."""
    if not chosen.any():
        raise ConfigError(f"{where}: there are no test images to measure accuracy on")
    predicted = first + logits[chosen, first:end].argmax(axis=1)
    return float(100 * np.mean(predicted == labels[chosen]))
