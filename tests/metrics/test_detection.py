import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distillmatch.metrics import (
    PseudoLabelQuality,
    auroc,
    pseudo_label_quality,
    rates_at_threshold,
)

generated = settings(deadline=None, max_examples=100)
scores = st.lists(
    st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(-2, 2)), min_size=1, max_size=20
)


@generated
@given(inside=scores, outside=scores)
def test_auroc_agrees_with_counting_pairs(inside: list[float], outside: list[float]) -> None:
    won = sum((a > b) + 0.5 * (a == b) for a in inside for b in outside)
    assert auroc(inside, outside) == pytest.approx(100 * won / len(inside) / len(outside))


def test_auroc_of_the_clear_cases() -> None:
    assert auroc([2, 3], [0, 1]) == 100
    assert auroc([0, 1], [2, 3]) == 0
    assert auroc([1, 1], [1, 1, 1]) == 50
    assert auroc([1], []) is None
    assert auroc([], [1]) is None


@generated
@given(inside=scores, outside=scores, threshold=st.sampled_from([0.0, 0.5, 1.0]))
def test_rates_agree_with_counting(
    inside: list[float], outside: list[float], threshold: float
) -> None:
    true_rate, false_rate = rates_at_threshold(inside, outside, threshold)
    assert true_rate == pytest.approx(100 * sum(s >= threshold for s in inside) / len(inside))
    assert false_rate == pytest.approx(100 * sum(s >= threshold for s in outside) / len(outside))
    assert rates_at_threshold(inside, [], threshold) == (true_rate, None)


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
    found = pseudo_label_quality(gate, guesses, truth, past)
    judged = [(guess, true) for taken, guess, true in images if taken and true >= 0]
    assert found.accepted == pytest.approx(100 * sum(taken for taken, _, _ in images) / len(images))
    if not judged:
        assert found.past is None
        assert found.right is None
        return
    assert found.past == pytest.approx(100 * sum(true < past for _, true in judged) / len(judged))
    assert found.right == pytest.approx(100 * sum(g == true for g, true in judged) / len(judged))


def test_nothing_accepted_leaves_quality_unmeasured() -> None:
    labels = np.array([0, 1])
    none_accepted = pseudo_label_quality(np.array([False, False]), labels, labels, 1)
    assert none_accepted == PseudoLabelQuality(accepted=0.0, past=None, right=None)
    empty = np.array([], dtype=np.int64)
    no_stream = pseudo_label_quality(empty.astype(bool), empty, empty, 1)
    assert no_stream == PseudoLabelQuality(accepted=None, past=None, right=None)
