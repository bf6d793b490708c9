"""Metrics against slow, plain computations: loops, counting, printed tables, and simulation."""

from collections.abc import Sequence
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import roc_auc_score

from distillmatch.errors import ConfigError
from distillmatch.metrics import (
    LEVEL,
    accuracy_matrix,
    agreement,
    auroc,
    backward_transfer,
    equivalent_coreset,
    forgetting,
    mean_and_deviation,
    omega,
    omega_curve,
    omega_double_sum,
    overall_accuracies,
    p_value,
    prefix_accuracies,
    pseudo_label_quality,
    share_at,
    stages_of,
    task_accuracies,
)

generated = settings(deadline=None, max_examples=60)
seeds = st.integers(0, 2**31)
task_sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5)


class World:
    """Test images of unequal number a class and random logits after each task."""

    def __init__(self, sizes: Sequence[int], seed: int) -> None:
        random = np.random.default_rng(seed)
        self.sizes = sizes
        self.task_of_class = [task for task, size in enumerate(sizes) for _ in range(size)]
        per_class = random.integers(1, 4, len(self.task_of_class))
        self.labels = random.permutation(np.repeat(np.arange(len(per_class)), per_class))
        shape = (len(sizes), len(self.labels), len(per_class))
        self.logits = random.normal(size=shape)
        self.logits[:, np.arange(shape[1]), self.labels] += 1.0
        tasks = [self.task_of_class[label] for label in self.labels]
        self.counts = [tasks.count(task) for task in range(len(sizes))]
        rows = [
            task_accuracies(self.logits[i], self.labels, sizes, i + 1) for i in range(len(sizes))
        ]
        self.seen = accuracy_matrix([seen for seen, _ in rows])
        self.within = accuracy_matrix([within for _, within in rows])
        self.prefix = accuracy_matrix(
            [
                prefix_accuracies(self.logits[i], self.labels, sizes, i + 1)
                for i in range(len(sizes))
            ]
        )

    def slow_accuracy(self, after: int, tested: Sequence[int], among: Sequence[int]) -> float:
        """Percent right of the tested tasks' images, predicting among the given tasks' classes."""
        right = total = 0
        for image, label in enumerate(self.labels):
            if self.task_of_class[label] not in tested:
                continue
            candidates = [k for k, task in enumerate(self.task_of_class) if task in among]
            best = max(candidates, key=lambda k: float(self.logits[after, image, k]))
            right += best == label
            total += 1
        return 100 * right / total


def offline_accuracies(count: int, seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed + 1).uniform(20, 90, count)


@generated
@given(sizes=task_sizes, seed=seeds)
def test_accuracy_matrices_agree_with_counting(sizes: list[int], seed: int) -> None:
    world = World(sizes, seed)
    for i in range(len(sizes)):
        seen = range(i + 1)
        for n in seen:
            assert world.seen[i, n] == pytest.approx(world.slow_accuracy(i, [n], seen))
            assert world.within[i, n] == pytest.approx(world.slow_accuracy(i, [n], [n]))
            first = range(n + 1)
            assert world.prefix[i, n] == pytest.approx(world.slow_accuracy(i, first, first))
        assert np.isnan(world.seen[i, i + 1 :]).all()


@generated
@given(sizes=task_sizes, seed=seeds)
def test_overall_accuracy_is_that_of_all_test_images(sizes: list[int], seed: int) -> None:
    world = World(sizes, seed)
    overall = overall_accuracies(world.seen, world.counts)
    expected = [world.slow_accuracy(i, range(i + 1), range(i + 1)) for i in range(len(sizes))]
    assert overall.tolist() == pytest.approx(expected)
    assert np.diagonal(world.prefix).tolist() == pytest.approx(expected)


@generated
@given(sizes=task_sizes, seed=seeds)
def test_omega_agrees_with_loops_in_both_readings(sizes: list[int], seed: int) -> None:
    world = World(sizes, seed)
    tasks = len(sizes)
    offline = offline_accuracies(tasks, seed)
    overall = overall_accuracies(world.seen, world.counts)
    curve = omega_curve(overall, offline)
    assert curve is not None
    for t in range(tasks):
        running = sum(overall[i] / offline[i] for i in range(t + 1)) / (t + 1)
        assert curve[t] == pytest.approx(100 * running)
    assert omega(overall, offline) == pytest.approx(curve[-1])
    printed = 0.0
    for i in range(tasks):
        for n in range(i + 1):
            share = sizes[n] / sum(sizes[: i + 1])
            printed += share * world.prefix[i, n] / offline[n]
    assert omega_double_sum(world.prefix, offline, sizes) == pytest.approx(100 * printed / tasks)


@generated
@given(sizes=task_sizes, seed=seeds)
def test_transfer_and_forgetting_agree_with_loops(sizes: list[int], seed: int) -> None:
    world = World(sizes, seed)
    last = len(sizes) - 1
    if last == 0:
        assert backward_transfer(world.within) == 0
        assert forgetting(world.seen, sizes) == 0
        return
    transfer = sum(world.within[last, n] - world.within[n, n] for n in range(last)) / last
    lost = 0.0
    for i in range(1, last + 1):
        for n in range(i):
            share = sizes[n] / sum(sizes[: i + 1])
            lost += share * (world.seen[n, n] - world.seen[i, n]) / last
    assert backward_transfer(world.within) == pytest.approx(transfer)
    assert forgetting(world.seen, sizes) == pytest.approx(lost)


def test_omega_cannot_be_measured_against_nothing() -> None:
    assert omega([10, 10], [50, 0]) is None
    assert omega_curve([10, 10], [50, 0]) is None
    assert omega_double_sum(accuracy_matrix([[10.0], [10.0, 10.0]]), [50, 0], [1, 1]) is None


def test_a_task_without_test_images_is_named() -> None:
    with pytest.raises(ConfigError, match="task 2: there are no test images"):
        task_accuracies(np.zeros((2, 3)), np.array([0, 1]), [2, 1], 2)


def test_a_bound_serves_where_its_stages_end_as_the_tasks_do() -> None:
    assert stages_of([90, 80, 70, 60], [1, 2, 1, 2], [3, 3]) == [80, 60]
    assert stages_of([90, 80, 70], [2, 2, 2], [3, 3]) is None
    assert stages_of([90, 80], [2, 2, 2], [4, 2]) is None, "an incomplete bound"


scores = st.lists(
    st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(-2, 2)), min_size=1, max_size=20
)


@generated
@given(inside=scores, outside=scores)
def test_auroc_is_that_of_scikit_learn(inside: list[float], outside: list[float]) -> None:
    of_sklearn = roc_auc_score([1] * len(inside) + [0] * len(outside), inside + outside)
    assert auroc(inside, outside) == pytest.approx(100 * of_sklearn)
    assert auroc(inside, []) is None and auroc([], outside) is None


@generated
@given(inside=scores, threshold=st.sampled_from([0.0, 0.5, 1.0]))
def test_rates_agree_with_counting(inside: list[float], threshold: float) -> None:
    share = 100 * sum(s >= threshold for s in inside) / len(inside)
    assert share_at(inside, threshold) == pytest.approx(share) and share_at([], threshold) is None


@generated
@given(
    images=st.lists(
        st.tuples(st.booleans(), st.integers(0, 2), st.integers(-1, 5)), min_size=1, max_size=20
    ),
    past=st.integers(1, 3),
)
def test_pseudo_label_quality_agrees_with_counting(
    images: list[tuple[bool, int, int]], past: int
) -> None:
    gate, guesses, truth = (np.array(column) for column in zip(*images, strict=True))
    accepted, of_past, right = pseudo_label_quality(gate, guesses, truth, past)
    judged = [(guess, true) for taken, guess, true in images if taken and true >= 0]
    assert accepted == pytest.approx(100 * sum(taken for taken, _, _ in images) / len(images))
    if not judged:
        assert of_past is None and right is None
        return
    assert of_past == pytest.approx(100 * sum(true < past for _, true in judged) / len(judged))
    assert right == pytest.approx(100 * sum(g == true for g, true in judged) / len(judged))


def test_nothing_accepted_leaves_quality_unmeasured() -> None:
    labels = np.array([0, 1])
    assert pseudo_label_quality(np.array([False, False]), labels, labels, 1) == (0.0, None, None)
    assert pseudo_label_quality(np.array([], bool), labels[:0], labels[:0], 1) == (None,) * 3


BUDGET = [(0, 30.0), (400, 50.0), (200, 45.0), (800, 54.0)]


@pytest.mark.parametrize(
    ("reached", "images"),
    [(45, 200.0), (47.5, 300.0), (52, 600.0), (54, 800.0), (30, 0.0), (20, 0.0), (54.1, None)],
)
def test_base_is_taken_as_linear_between_the_coresets_that_were_measured(
    reached: float, images: float | None
) -> None:
    found = equivalent_coreset(BUDGET, reached)
    assert found == (None if images is None else pytest.approx(images))


def test_where_base_falls_with_more_images_the_smallest_coreset_counts() -> None:
    assert equivalent_coreset([(100, 40.0), (200, 50.0), (300, 45.0)], 47.0) == pytest.approx(170.0)


@generated
@given(t=st.floats(-30, 30), degrees=st.floats(1, 200))
def test_p_values_are_those_of_students_t(t: float, degrees: float) -> None:
    assert p_value(t, degrees) == pytest.approx(2 * stats.t.sf(abs(t), degrees), rel=1e-3, abs=1e-9)


def test_the_deviation_over_seeds_is_that_of_a_sample() -> None:
    mean, deviation = mean_and_deviation([1.0, 2.0, 6.0])
    assert mean == 3 and deviation == pytest.approx(sqrt((4 + 1 + 9) / 2))
    assert mean_and_deviation([4.0]) == (4.0, None)


def test_one_run_is_compared_by_the_interval_of_a_fourth_like_the_published_three() -> None:
    """Published 20 ± 2 (divided by three): a sample deviation of √6, and t of two degrees."""
    edge = 4.303 * sqrt(6) * sqrt(1 + 1 / 3)
    for difference, verdict in ((edge - 0.02, "agrees"), (edge + 0.02, "higher")):
        assert agreement(20.0, 2.0, [20 + difference]) == verdict
        assert agreement(20.0, 2.0, [20 - difference]) == verdict.replace("higher", "lower")


def test_several_runs_are_compared_by_welchs_test() -> None:
    random = np.random.default_rng(4)
    for _ in range(200):
        published, ours = random.normal(30, 2, 3), random.normal(32, 3, random.integers(2, 6))
        _, p = stats.ttest_ind(ours, published, equal_var=False)
        verdict = agreement(published.mean(), published.std(), ours.tolist())
        assert (verdict == "agrees") == (p >= LEVEL)


def test_without_any_spread_only_the_same_figure_agrees() -> None:
    assert agreement(10.0, 0.0, [10.0]) == agreement(10.0, 0.0, [10.0, 10.0]) == "agrees"
    assert agreement(10.0, 0.0, [10.1]) == "higher"
    assert agreement(10.0, 0.0, [9.9, 9.9]) == "lower"
