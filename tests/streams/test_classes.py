"""What an unlabeled stream shows: how classes are drawn, dealt and put together anew."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from conftest import make_dataset
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distillmatch.config import StreamConfig
from distillmatch.errors import StreamError
from distillmatch.streams import build_stream
from distillmatch.streams.classes import balanced_draws, deal_again, derangement


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.integers(2, 4), st.integers(1, 5), st.integers(0, 10**6))
def test_regrouped_streams_show_a_task_a_group_of_its_own_parent_and_others(
    per_parent: int, super_classes: int, times: int, seed: int
) -> None:
    parents = super_classes * times
    dataset = make_dataset(parents * per_parent, 8, 2, parents, super_classes)
    config = StreamConfig(unlabeled="negative", seed=seed)
    tree = dataset.tree
    assert tree is not None
    shown = {
        tree.parent_of_class[task.classes[0]]: {
            tree.parent_of_class[c] for c in task.unlabeled_classes
        }
        for task in build_stream(dataset, config).tasks
    }
    assert all(parent in group for parent, group in shown.items())
    assert all(shown[other] == group for group in shown.values() for other in group)
    assert sorted(map(len, {frozenset(g) for g in shown.values()})) == [times] * super_classes


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=8), st.integers(0, 10**6))
def test_groups_deal_again_are_the_same_ones_and_nobody_keeps_theirs(
    sizes: list[int], seed: int
) -> None:
    sizes[0] = min(sizes[0], sum(sizes[1:]))
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    assume(2 * max(sizes) <= len(groups))
    dealt = deal_again(groups, seed)
    assert sorted(dealt) == groups
    assert all(new != own for new, own in zip(dealt, groups, strict=True))


@pytest.mark.parametrize(
    ("recipe", "super_classes", "sentence"),
    [
        ("as-written", 1, "needs at least two super-classes, not 1"),
        ("paper", 2, "at most half of the 3 parents, but '.*' has 2"),
    ],
)
def test_a_negative_stream_without_other_super_classes_is_refused(
    recipe: Any, super_classes: int, sentence: str
) -> None:
    config = StreamConfig(unlabeled="negative", recipe=recipe)
    with pytest.raises(StreamError, match=sentence):
        build_stream(make_dataset(6, 8, 2, 3, super_classes), config)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.data())
def test_random_streams_draw_every_class_equally_often(
    classes: int, tasks: int, data: st.DataObject
) -> None:
    drawn = data.draw(st.integers(1, classes))
    hands = balanced_draws(classes, tasks, drawn, data.draw(st.integers(0, 1000)))
    counts = Counter(c for hand in hands for c in hand)
    often = [counts[c] for c in range(classes)]
    assert max(often) - min(often) <= (1 if (tasks * drawn) % classes else 0)
    assert all(len(set(hand)) == len(hand) == drawn for hand in hands)


def test_random_streams_are_mixed_beyond_dealing_rounds() -> None:
    """Any two tasks share about as many classes as independent draws would: 20 · 20/100 = 4."""
    shared = []
    for seed in range(30):
        hands = [set(hand) for hand in balanced_draws(100, 20, 20, seed)]
        shared += [len(hands[0] & hands[1]), len(hands[3] & hands[11])]
    assert 3.2 < np.mean(shared) < 4.6


@given(st.integers(2, 12), st.integers(0, 10**9))
def test_a_derangement_leaves_nothing_in_its_place(count: int, seed: int) -> None:
    order = derangement(count, seed)
    assert sorted(order) == list(range(count))
    assert all(i != item for i, item in enumerate(order))
