"""Groups of camera images: each image in one of them, those that teach most first."""

import numpy as np
import pytest

from distillmatch.serve.groups import MOST_IMAGES, SURE, clusters, group_images, margins

CLASSES = ["a", "b", "c"]


@pytest.mark.parametrize("seed", range(3))
def test_groups_are_what_plain_loops_say(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.dirichlet((0.5, 0.5, 0.5), 60).astype(np.float32)
    familiar = draw.random(60) < 0.7
    grouping = group_images(rows, familiar, draw.random((60, 5), np.float32), CLASSES)
    for group in grouping.groups:
        for number in group.images:
            second, first = sorted(rows[number].tolist())[-2:]
            kind = "sure" if first - second >= SURE else "doubtful"
            assert group.kind == (kind if familiar[number] else "unfamiliar")
            if familiar[number]:
                assert group.label == CLASSES[rows[number].tolist().index(first)]
            unsure = 1 - (first - second) if familiar[number] else 1
            assert grouping.uncertainty[number] == pytest.approx(unsure, abs=1e-6)
        unsure_of = grouping.uncertainty[group.images]
        assert (np.diff(unsure_of) <= 0).all(), "the least sure come first"
    assert sorted(n for group in grouping.groups for n in group.images) == list(range(60))
    still_open = draw.random(60) < 0.5
    for group in grouping.groups:
        expected = sum(float(grouping.uncertainty[n]) for n in group.images if still_open[n])
        assert grouping.gain(group, still_open) == pytest.approx(expected, abs=1e-5)


def test_one_class_alone_is_sure_and_equal_shares_are_doubtful() -> None:
    assert margins(np.ones((2, 1), np.float32)).tolist() == [1, 1]
    rows = np.full((4, 3), 1 / 3, np.float32)
    grouping = group_images(rows, np.ones(4, bool), np.zeros((4, 2), np.float32), CLASSES)
    assert [(group.kind, group.label) for group in grouping.groups] == [("doubtful", "a")]


def test_images_of_one_guess_that_look_different_are_apart() -> None:
    rows = np.tile(np.array([0.9, 0.1, 0], np.float32), (40, 1))
    looks = np.repeat(np.eye(2, 5, dtype=np.float32), 20, axis=0)
    grouping = group_images(rows, np.ones(40, bool), looks, CLASSES)
    assert all(len({number // 20 for number in group.images}) == 1 for group in grouping.groups)
    assert {group.label for group in grouping.groups} == {"a"}


def test_clusters_find_what_lies_apart_and_are_small() -> None:
    draw = np.random.default_rng(0)
    places = 10 * np.eye(4, 6)
    truth = np.repeat(np.arange(4), 16)
    draw.shuffle(truth)
    rows = (places[truth] + 0.1 * draw.standard_normal((64, 6))).astype(np.float32)
    assert sorted(tuple(sorted(members)) for members in clusters(rows)) == sorted(
        tuple(np.flatnonzero(truth == one)) for one in range(4)
    )
    crowd = draw.standard_normal((900, 6)).astype(np.float32)
    for some in (np.concatenate([crowd, 100 + crowd[:20]]), np.ones((700, 3), np.float32)):
        found = clusters(some)
        assert max(map(len, found)) <= MOST_IMAGES
        assert sorted(np.concatenate(found)) == list(range(len(some)))
    assert clusters(crowd[:0]) == []
