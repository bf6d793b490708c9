"""Scores of familiar images and the calibration of their threshold."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_draws import generated, near, normal, seeds
from plain import softmax
from torch import Tensor

from distillmatch.errors import ConfigError
from distillmatch.losses import (
    choose_epsilon,
    max_similarity,
    perturb,
    softmax_confidence,
    threshold_at_fpr,
    threshold_at_tpr,
)


@generated
@given(batch=st.integers(1, 5), seen=st.integers(1, 4), unseen=st.integers(0, 3), seed=seeds)
def test_scores_look_at_seen_classes_only(batch: int, seen: int, unseen: int, seed: int) -> None:
    values = normal(batch, seen + unseen, seed=seed)
    similarity, confidence = max_similarity(values, seen), softmax_confidence(values, seen)
    for b in range(batch):
        row = values[b, :seen].tolist()
        assert float(similarity[b]) == max(row)
        assert near(confidence[b], max(softmax(row)))


def test_the_perturbation_moves_every_pixel_by_epsilon_along_the_gradient() -> None:
    moved = perturb(torch.zeros(4), torch.tensor([0.3, -7.0, 0.0, 1e-9]), 0.02)
    assert moved.tolist() == pytest.approx([0.02, -0.02, 0.0, 0.02])


def test_epsilon_is_the_one_of_the_highest_score_or_half_that_of_the_lowest() -> None:
    grid, scores = [0.0, 0.01, 0.02, 0.04], [0.5, 0.7, 0.3, 0.7]
    assert choose_epsilon(grid, scores) == 0.01
    assert choose_epsilon(grid, scores, "lowest-halved") == 0.01
    assert choose_epsilon(grid, [0.1, 0.2, 0.3, 0.05], "lowest-halved") == 0.02
    with pytest.raises(ValueError, match="4 values of epsilon but 1"):
        choose_epsilon(grid, [1.0])


@generated
@given(
    scores=st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 0.5]), min_size=1, max_size=40),
    rate=st.sampled_from([0.05, 0.07, 0.29, 0.3, 0.5, 0.95, 1.0]),
)
@pytest.mark.parametrize("threshold_at", [threshold_at_tpr, threshold_at_fpr])
def test_the_threshold_is_the_highest_that_gives_the_rate(
    threshold_at: Callable[[Tensor, float], Tensor], scores: list[float], rate: float
) -> None:
    threshold = float(threshold_at(torch.tensor(scores, dtype=torch.float64), rate))

    def reached(candidate: float) -> float:
        return sum(score >= candidate for score in scores) / len(scores)

    assert threshold == max(c for c in scores if reached(c) >= rate - 1e-12)


def test_a_threshold_needs_images_and_a_rate() -> None:
    with pytest.raises(ConfigError, match="no held-out images"):
        threshold_at_tpr(torch.empty(0), 0.5)
    with pytest.raises(ConfigError, match="more than 0 and at most 1, not 0"):
        threshold_at_tpr(torch.ones(3), 0)
