"""Groups of camera images: each image in one of them, those that teach most first."""

import numpy as np
import pytest
from numpy.typing import NDArray

from distillmatch.serve.camera import Judged
from distillmatch.serve.groups import (
    MOST_IMAGES,
    SURE,
    Group,
    clusters,
    group_images,
    uncertainties,
)

CLASSES = ["a", "b", "c"]


def grouped(
    rows: NDArray[np.float32], familiar: NDArray[np.bool_], looks: NDArray[np.float32]
) -> tuple[list[Group], NDArray[np.float32]]:
    judged = Judged(rows, familiar, looks)
    uncertainty = uncertainties(judged)
    return group_images(judged, uncertainty, CLASSES), uncertainty


@pytest.mark.parametrize("seed", range(3))
def test_groups_are_what_plain_loops_say(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.dirichlet((0.5, 0.5, 0.5), 60).astype(np.float32)
    familiar = draw.random(60) < 0.7
    groups, uncertainty = grouped(rows, familiar, draw.random((60, 5), np.float32))
    for group in groups:
        for number in group.images:
            second, first = sorted(rows[number].tolist())[-2:]
            kind = "sure" if first - second >= SURE else "doubtful"
            assert group.kind == (kind if familiar[number] else "unfamiliar")
            if familiar[number]:
                assert group.label == CLASSES[rows[number].tolist().index(first)]
            unsure = 1 - (first - second) if familiar[number] else 1
            assert uncertainty[number] == pytest.approx(unsure, abs=1e-6)
        assert (np.diff(uncertainty[group.images]) <= 0).all(), "the least sure come first"
    assert sorted(n for group in groups for n in group.images) == list(range(60))


def test_one_class_alone_is_sure_and_equal_shares_are_doubtful() -> None:
    familiar, looks = np.ones(4, bool), np.zeros((4, 2), np.float32)
    alone = uncertainties(Judged(np.ones((4, 1), np.float32), familiar, looks))
    assert alone.tolist() == [0, 0, 0, 0]
    groups, _ = grouped(np.full((4, 3), 1 / 3, np.float32), familiar, looks)
    assert [(group.kind, group.label) for group in groups] == [("doubtful", "a")]


def test_clusters_are_small_and_hold_every_row_once() -> None:
    crowd = np.random.default_rng(0).standard_normal((900, 6)).astype(np.float32)
    for some in (np.concatenate([crowd, 100 + crowd[:20]]), np.ones((700, 3), np.float32)):
        found = clusters(some)
        assert max(map(len, found)) <= MOST_IMAGES
        assert sorted(np.concatenate(found)) == list(range(len(some)))
    assert clusters(crowd[:0]) == []
