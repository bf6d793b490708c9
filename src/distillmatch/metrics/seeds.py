"""A figure over seeds."""

from collections.abc import Sequence
from statistics import fmean, stdev


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and standard deviation over seeds, the deviation `None` for a single one.

    The deviation is the sample's (divisor count - 1): seeds are a sample of all seeds.
    """
    return fmean(values), stdev(values) if len(values) > 1 else None
