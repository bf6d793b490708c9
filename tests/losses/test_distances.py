"""Distances in feature space against loops over images and plain linear algebra."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from distillmatch.losses import (
    class_means,
    relative_mahalanobis,
    shrunk_covariance,
    standardized_sum,
    whitening,
)

Array = NDArray[np.float64]


def drawn(rows: int, columns: int, seed: int) -> Array:
    """Rows whose columns have different scales and depend on each other."""
    random = np.random.default_rng(seed)
    mixed = random.normal(size=(columns, columns)) * np.linspace(0.1, 3, columns)
    return random.normal(size=(rows, columns)) @ mixed


def tensor(array: Array) -> Tensor:
    return torch.from_numpy(array)


def slow_shrunk(rows: Array) -> Array:
    """Ledoit and Wolf's estimate row by row, with the tiny variance that is added to all."""
    count, size = rows.shape
    sample = sum(np.outer(row, row) for row in rows) / count
    target = np.trace(sample) / size * np.eye(size)
    error = sum(np.linalg.norm(np.outer(row, row) - sample) ** 2 for row in rows) / count**2
    share = min(1.0, error / np.linalg.norm(sample - target) ** 2)
    shrunk: Array = (1 - share) * sample + share * target + 1e-6 * np.eye(size)
    return shrunk


def test_the_mean_of_a_class_is_that_of_its_rows() -> None:
    rows, labels = drawn(9, 4, seed=1), np.array([0, 2, 2, 0, 2, 4, 4, 0, 0])
    means = class_means(tensor(rows), torch.from_numpy(labels), 5).numpy()
    for label in (0, 2, 4):
        np.testing.assert_allclose(means[label], rows[labels == label].mean(axis=0), rtol=1e-12)
    assert np.isnan(means[[1, 3]]).all()


@pytest.mark.parametrize(("count", "size"), [(200, 5), (12, 5), (4, 9), (2, 3)])
def test_the_covariance_is_shrunk_as_ledoit_and_wolf_do(count: int, size: int) -> None:
    rows = drawn(count, size, seed=count)
    found = shrunk_covariance(tensor(rows)).numpy()
    np.testing.assert_allclose(found, slow_shrunk(rows), rtol=1e-9, atol=1e-12)


def test_a_share_of_more_than_all_is_all() -> None:
    """Rows of nearly the same variance in every direction tell nothing but that variance."""
    rows = np.random.default_rng(202).normal(size=(200, 5))
    found = shrunk_covariance(tensor(rows)).numpy()
    np.testing.assert_allclose(found, slow_shrunk(rows), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found, np.eye(5) * found[0, 0], atol=1e-12)


def test_fewer_rows_are_shrunk_more() -> None:
    rows = drawn(400, 6, seed=3)

    def skewness(count: int) -> float:
        part = rows[:count]
        sample = part.T @ part / count
        off = ~np.eye(6, dtype=bool)
        found = shrunk_covariance(tensor(part)).numpy()
        return float((found[off] / sample[off]).mean())

    assert skewness(8) < skewness(40) < skewness(400) < 1


def test_rows_that_are_all_alike_have_a_covariance_that_can_be_inverted() -> None:
    for rows in (torch.zeros(1, 4), torch.zeros(6, 4)):
        assert torch.isfinite(whitening(shrunk_covariance(rows.double()))).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_score_is_the_background_s_distance_less_that_of_the_nearest_class(seed: int) -> None:
    images, means, center = drawn(30, 5, seed), drawn(4, 5, seed + 10), drawn(1, 5, seed + 20)[0]
    within, background = (slow_shrunk(drawn(20, 5, seed + s)) for s in (30, 40))
    found = relative_mahalanobis(
        tensor(images),
        tensor(means),
        whitening(tensor(within)),
        tensor(center),
        whitening(tensor(background)),
    )
    for row, score in zip(images, found.tolist(), strict=True):
        nearest = min((row - m) @ np.linalg.inv(within) @ (row - m) for m in means)
        far = (row - center) @ np.linalg.inv(background) @ (row - center)
        assert score == pytest.approx(far - nearest, rel=1e-9)


def test_a_class_without_a_mean_is_near_to_nothing() -> None:
    images, means = tensor(drawn(6, 3, seed=5)), tensor(drawn(3, 3, seed=6))
    unit, center = torch.eye(3).double(), torch.zeros(3).double()
    without = means.clone()
    without[1] = torch.nan
    found = relative_mahalanobis(images, without, unit, center, unit)
    assert torch.equal(found, relative_mahalanobis(images, means[[0, 2]], unit, center, unit))


def test_judges_count_by_how_far_an_image_is_from_their_mean() -> None:
    scores = torch.tensor([[1.0, 10.0], [3.0, 10.0], [1.0, 30.0]]).double()
    found = standardized_sum(scores, torch.tensor([1.0, 20.0]), torch.tensor([2.0, 5.0]))
    assert found.tolist() == pytest.approx([-2.0, -1.0, 2.0])
