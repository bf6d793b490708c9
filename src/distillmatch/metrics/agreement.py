"""Figures over seeds, and whether a published figure and one measured here agree.

A mean of few runs is compared by Welch's t-test: a fixed number of deviations would call chance a
difference in three of ten perfect reproductions.
"""

from collections.abc import Sequence
from math import atan, exp, lgamma, pi, sqrt
from statistics import fmean, stdev
from typing import Literal

import numpy as np

PUBLISHED_RUNS = 3
"""Runs behind a published mean and deviation."""
LEVEL = 0.05
"""Of the two-sided test."""
Verdict = Literal["agrees", "higher", "lower"]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and standard deviation over seeds, the deviation `None` for a single one.

    The deviation is the sample's (divisor count - 1): seeds are a sample of all seeds.
    """
    return fmean(values), stdev(values) if len(values) > 1 else None


def agreement(mean: float, deviation: float, values: Sequence[float]) -> Verdict:
    """Return whether figures measured here agree with a published mean and deviation.

    The published deviation is of three runs, divided by three. Several seeds are compared by
    Welch's t-test on means; a single one by the t-interval, with two degrees of freedom, of one
    more run like the published ones.
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
    difference = ours - mean
    if of_theirs + of_ours == 0:
        differs = abs(difference) > 1e-9
    else:
        differs = p_value(difference / sqrt(of_theirs + of_ours), degrees) < LEVEL
    if not differs:
        return "agrees"
    return "higher" if difference > 0 else "lower"


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
