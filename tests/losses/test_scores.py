from collections.abc import Callable
from math import exp

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from distillmatch.errors import ConfigError
from distillmatch.losses import (
    accepted,
    choose_epsilon,
    max_similarity,
    perturb,
    softmax_confidence,
    threshold_at_fpr,
    threshold_at_tpr,
)
from distillmatch.networks import build_network

generated = settings(deadline=None, max_examples=100)


@generated
@given(
    batch=st.integers(1, 5), seen=st.integers(1, 4), unseen=st.integers(0, 3), seed=st.integers(0)
)
def test_scores_look_at_seen_classes_only(batch: int, seen: int, unseen: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed % 2**31)
    values = torch.randn(batch, seen + unseen, generator=generator, dtype=torch.float64)
    similarity, confidence = max_similarity(values, seen), softmax_confidence(values, seen)
    for b in range(batch):
        row = values[b, :seen].tolist()
        assert float(similarity[b]) == max(row)
        expected = exp(max(row)) / sum(exp(value) for value in row)
        assert float(confidence[b]) == pytest.approx(expected, rel=1e-12)


def test_the_perturbation_moves_every_pixel_by_epsilon_along_the_gradient() -> None:
    moved = perturb(torch.zeros(4), torch.tensor([0.3, -7.0, 0.0, 1e-9]), 0.02)
    assert moved.tolist() == pytest.approx([0.02, -0.02, 0.0, 0.02])


def test_the_perturbation_raises_the_score() -> None:
    generator = torch.Generator().manual_seed(0)
    detector = build_network("wrn-10-1", 4, "cosine", generator).eval()
    images = torch.randn(6, 3, 8, 8, generator=generator, requires_grad=True)
    scores = max_similarity(detector.similarities(images), 3)
    gradient = torch.autograd.grad(scores.sum(), images)[0]
    with torch.no_grad():
        moved = max_similarity(detector.similarities(perturb(images, gradient, 1e-3)), 3)
    assert (moved > scores.detach()).all()


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
    tpr=st.sampled_from([0.05, 0.07, 0.3, 0.5, 0.95, 1.0]),
)
@pytest.mark.parametrize("threshold_at", [threshold_at_tpr, threshold_at_fpr])
def test_the_threshold_is_the_highest_that_gives_the_asked_rate(
    threshold_at: Callable[[Tensor, float], Tensor], scores: list[float], tpr: float
) -> None:
    held_out = torch.tensor(scores, dtype=torch.float64)
    threshold = float(threshold_at(held_out, tpr))

    def rate(candidate: float) -> float:
        return sum(score >= candidate for score in scores) / len(scores)

    assert threshold == max(c for c in scores if rate(c) >= tpr - 1e-12)


@pytest.mark.parametrize("tpr", [0.05, 0.07, 0.5, 0.29, 1.0])
def test_without_ties_the_rate_is_exactly_the_asked_one(tpr: float) -> None:
    scores = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
    reached = accepted(scores, threshold_at_tpr(scores, tpr))
    assert float(reached.double().mean()) == pytest.approx(tpr)


def test_a_threshold_needs_images_and_a_rate() -> None:
    with pytest.raises(ConfigError, match="no held-out images"):
        threshold_at_tpr(torch.empty(0), 0.5)
    with pytest.raises(ConfigError, match="more than 0 and at most 1, not 0"):
        threshold_at_tpr(torch.ones(3), 0)
