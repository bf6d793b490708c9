from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from distillmatch.errors import ConfigError
from distillmatch.metrics import (
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
    assert final_accuracy(world.seen, world.counts) == pytest.approx(expected[-1])


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


def test_a_learner_that_keeps_only_the_newest_task_forgets_all_else() -> None:
    seen = accuracy_matrix([[80.0], [0.0, 80.0], [0.0, 0.0, 80.0]])
    assert overall_accuracies(seen, [10, 10, 10]).tolist() == pytest.approx([80, 40, 80 / 3])
    assert forgetting(seen, [5, 5, 5]) == pytest.approx(80 * (1 / 2 + 2 / 3) / 2)


def test_a_learner_as_good_as_the_offline_one_has_an_omega_of_a_hundred() -> None:
    assert omega([70, 60, 50], [70, 60, 50]) == pytest.approx(100)
    prefix = accuracy_matrix([[70.0], [70.0, 60.0], [70.0, 60.0, 50.0]])
    assert omega_double_sum(prefix, [70, 60, 50], [5, 2, 1]) == pytest.approx(100)


def test_omega_cannot_be_measured_against_nothing() -> None:
    assert omega([10, 10], [50, 0]) is None
    assert omega_curve([10, 10], [50, 0]) is None
    assert omega_double_sum(accuracy_matrix([[10.0], [10.0, 10.0]]), [50, 0], [1, 1]) is None


def test_a_task_without_test_images_is_named() -> None:
    with pytest.raises(ConfigError, match="task 2: there are no test images"):
        task_accuracies(np.zeros((2, 3)), np.array([0, 1]), [2, 1], 2)
