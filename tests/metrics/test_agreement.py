"""Whether figures agree: Welch's t-test against printed tables, and against simulated papers."""

from math import sqrt
from statistics import fmean, pstdev

import numpy as np
import pytest

from distillmatch.metrics import agreement, mean_and_deviation
from distillmatch.metrics.agreement import p_value

T_TABLE = {
    (1, 0.05): 12.706,
    (2, 0.10): 2.920,
    (2, 0.05): 4.303,
    (2, 0.01): 9.925,
    (3, 0.05): 3.182,
    (4, 0.05): 2.776,
    (5, 0.02): 3.365,
    (10, 0.05): 2.228,
    (30, 0.001): 3.646,
    (120, 0.05): 1.980,
}
"""Two-sided critical values of Student's t by degrees of freedom and level, as books print them."""


@pytest.mark.parametrize(("place", "t"), T_TABLE.items())
def test_p_values_are_those_of_the_t_table(place: tuple[int, float], t: float) -> None:
    degrees, level = place
    assert p_value(t, degrees) == pytest.approx(level, rel=2e-3)
    assert p_value(-t, degrees) == p_value(t, degrees)


def test_the_deviation_over_seeds_is_that_of_a_sample() -> None:
    mean, deviation = mean_and_deviation([1.0, 2.0, 6.0])
    assert mean == 3 and deviation == pytest.approx(sqrt((4 + 1 + 9) / 2))
    assert mean_and_deviation([4.0]) == (4.0, None)


def test_one_run_is_compared_by_the_interval_of_a_fourth_like_the_published_three() -> None:
    """Published 20 ± 2 (divided by three): a sample deviation of √6, and t of two degrees."""
    edge = 4.303 * sqrt(6) * sqrt(1 + 1 / 3)
    assert agreement(20.0, 2.0, [20 + edge - 0.02]) == "agrees"
    assert agreement(20.0, 2.0, [20 + edge + 0.02]) == "higher"
    assert agreement(20.0, 2.0, [20 - edge - 0.02]) == "lower"


def test_of_three_runs_against_three_with_the_same_spread_t_has_four_degrees() -> None:
    ours = [9.0, 10.0, 11.0]  # a sample deviation of 1
    published = sqrt(2 / 3)  # the same, divided by three
    edge = 2.776 * sqrt(1 / 3 + 1 / 3)
    for difference, verdict in ((edge - 0.01, "agrees"), (edge + 0.01, "lower")):
        assert agreement(10 + difference, published, ours) == verdict
        other = {"agrees": "agrees", "lower": "higher"}[verdict]
        assert agreement(10 - difference, published, ours) == other


def test_without_any_spread_only_the_same_figure_agrees() -> None:
    assert agreement(10.0, 0.0, [10.0]) == agreement(10.0, 0.0, [10.0, 10.0]) == "agrees"
    assert agreement(10.0, 0.0, [10.1]) == "higher"
    assert agreement(10.0, 0.0, [9.9, 9.9]) == "lower"


@pytest.mark.parametrize(
    ("runs", "lowest", "highest"), [(1, 0.935, 0.965), (3, 0.935, 0.98), (10, 0.93, 0.98)]
)
def test_a_perfect_reproduction_agrees_95_percent_of_the_time(
    runs: int, lowest: float, highest: float
) -> None:
    """Both draw from one normal distribution; Welch's test with few runs is a little careful."""
    random, times = np.random.default_rng(runs), 2000
    agreed = 0
    for _ in range(times):
        published = random.normal(30, 2, 3).tolist()
        ours = random.normal(30, 2, runs).tolist()
        agreed += agreement(fmean(published), pstdev(published), ours) == "agrees"
    assert lowest < agreed / times < highest


def test_a_difference_of_many_deviations_is_found_almost_always() -> None:
    random, found = np.random.default_rng(5), 0
    for _ in range(300):
        published, ours = random.normal(30, 1, 3).tolist(), random.normal(20, 1, 3).tolist()
        found += agreement(fmean(published), pstdev(published), ours) == "lower"
    assert found > 290
