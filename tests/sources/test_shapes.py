"""The drawn images: how many, of what, and the same bytes on every machine."""

import numpy as np
import pytest

from distillmatch.config import StreamConfig
from distillmatch.errors import SourceError
from distillmatch.sources.shapes import load


@pytest.mark.parametrize(
    # Saved streams name the data by these figures: when they change, those can no longer be read.
    ("side", "fingerprint"),
    [(16, "90b35ce250d0b10fb8eca759637210aa"), (32, "8eedea79f51c62567a4471517e79abec")],
)
def test_the_data_are_the_same_bytes_on_every_machine(side: int, fingerprint: str) -> None:
    data = load(StreamConfig(seed=7, tasks=5, image_size=side))
    assert data.fingerprint == fingerprint
    for part, count in ((data.train, 150), (data.test, 30)):
        assert part.images.shape == (60 * count, side, side, 3)
        assert np.array_equal(np.bincount(part.labels), [count] * 60)
    tree = data.tree
    assert tree is not None and len(data.class_names) == 60
    assert [len(tree.parents_of_super_class(s)) for s in range(6)] == [2] * 6
    assert [len(tree.classes_of_parent(p)) for p in range(12)] == [5] * 12


def test_another_side_is_refused_in_a_sentence() -> None:
    with pytest.raises(SourceError, match=r"^image_size must be 16 or 32 .*not 24$"):
        load(StreamConfig(image_size=24))
