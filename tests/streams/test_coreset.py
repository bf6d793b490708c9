"""The coreset: the protocol's rule against a slow count, over generated histories."""

from collections import Counter

import numpy as np
from conftest import make_dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from test_streams import Case, cases

from distillmatch.config import StreamConfig
from distillmatch.streams import Coreset, build_stream, quotas, stored_sizes


@given(st.integers(0, 500), st.integers(1, 60))
def test_quotas_use_the_whole_capacity_and_favor_the_newest(capacity: int, seen: int) -> None:
    shares = quotas(capacity, seen)
    assert sum(shares) == capacity
    assert shares == sorted(shares)
    assert set(shares) <= {capacity // seen, capacity // seen + 1}


@settings(max_examples=100, deadline=None)
@given(cases())
def test_a_coreset_keeps_the_rule_from_task_to_task(case: Case) -> None:
    dataset, config = case
    stream = build_stream(dataset, config)
    coreset, label_of = Coreset(config.coreset, dataset.image_size), dict[bytes, int]()
    for learned, accounted in zip(stream, stored_sizes(stream), strict=True):
        images = [image.tobytes() for image in np.asarray(learned.images)]
        there = Counter([*coreset.labels.tolist(), *learned.labels.tolist()])
        may_stay = {image.tobytes() for image in coreset.images} | set(images)
        label_of.update(zip(images, learned.labels.tolist(), strict=True))
        coreset = coreset.after(learned, config.seed)
        limits = enumerate(quotas(config.coreset, learned.seen))
        expected = [slot for slot, limit in limits for _ in range(min(there[slot], limit))]
        stored = [image.tobytes() for image in coreset.images]
        assert coreset.labels.tolist() == expected == [label_of[image] for image in stored]
        assert len(set(stored)) == len(stored) and set(stored) <= may_stay
        assert accounted == (len(coreset), coreset.bytes) == (len(stored), 192 * len(stored))


def test_which_images_are_kept_is_decided_by_the_seed_and_old_ones_are_mixed_with_new() -> None:
    config = StreamConfig(tasks=2, labels_per_class=20, repetition=1.0)
    first, second = build_stream(make_dataset(per_class=20), config)
    after_first = [Coreset(96, 8).after(first, seed) for seed in (1, 1, 2)]
    kept = [coreset.after(second, 1) for coreset in after_first]
    assert np.array_equal(kept[0].images, kept[1].images)
    assert not np.array_equal(after_first[0].images, after_first[2].images)
    old = {image.tobytes() for image in after_first[0].images}
    stored = [image.tobytes() in old for image in kept[0].images[kept[0].labels < 6]]
    assert len(stored) == 48 and 12 < sum(stored) < 36, "8 of 10 stored and 10 new of each class"
