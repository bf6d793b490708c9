"""What an unlabeled image is worth in stored ones."""

from collections.abc import Sequence


def equivalent_coreset(
    coreset_sizes: Sequence[int], base_omegas: Sequence[float], omega: float
) -> float | None:
    """Return how many images Base must store to reach the given Ω.

    Base's Ω is taken as linear between its measured coreset sizes; the smallest size that reaches
    Ω counts. It is the smallest size measured where Base reaches Ω there already, and `None` where
    no measured size does.
    """
    points = sorted(zip(coreset_sizes, base_omegas, strict=True))
    for index, (size, reached) in enumerate(points):
        if reached < omega:
            continue
        if index == 0:
            return float(size)
        size_before, reached_before = points[index - 1]
        step = (omega - reached_before) / (reached - reached_before)
        return size_before + step * (size - size_before)
    return None


def memory_saving(stored_images: float, unlabeled_per_task: int) -> float:
    """Return the stored images that one unlabeled image of a task saves."""
    return stored_images / unlabeled_per_task
