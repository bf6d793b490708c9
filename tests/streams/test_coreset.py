"""The coreset: the protocol's rule against a slow count, over generated histories."""

import numpy as np
from conftest import make_dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from distillmatch.config import StreamConfig
from distillmatch.streams import Coreset, build_stream, quotas, stored_sizes


@given(st.integers(0, 500), st.integers(1, 60))
def test_quotas_use_the_whole_capacity_and_favor_the_newest(capacity: int, seen: int) -> None:
    shares = quotas(capacity, seen)
    assert sum(shares) == capacity
    assert shares == sorted(shares)
    assert set(shares) <= {capacity // seen, capacity // seen + 1}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 80), st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(1, 9), st.integers(0, 99)
)
def test_a_coreset_keeps_the_rule_from_task_to_task(
    capacity: int, tasks: int, labels: int, seed: int
) -> None:
    dataset = make_dataset(per_class=10)
    config = StreamConfig(tasks=tasks, labels_per_class=labels, coreset=capacity, seed=seed)
    stream = build_stream(dataset, config)
    coreset = Coreset(capacity, dataset.image_size)
    before: set[bytes] = set()
    accounted = []
    for number in range(tasks):
        learned = stream.experience(number)
        coreset = coreset.after(learned, seed)
        each, left = divmod(capacity, learned.seen)
        expected = []
        for slot in range(learned.seen):
            newest = slot >= learned.seen - left
            expected += [slot] * min(labels, each + (1 if newest else 0))
        assert coreset.labels.tolist() == expected
        stored = [image.tobytes() for image in coreset.images]
        assert len(set(stored)) == len(stored)
        assert set(stored) <= before | {image.tobytes() for image in learned.images}
        by_image = {
            image.tobytes(): label
            for image, label in zip(learned.images, learned.labels, strict=True)
        }
        for image, label in zip(stored, coreset.labels, strict=True):
            assert by_image.get(image, label) == label
        before = set(stored)
        assert len(coreset) == len(stored) <= capacity
        assert coreset.bytes == sum(len(image) for image in stored)
        accounted.append((len(coreset), coreset.bytes))

    assert stored_sizes(stream) == accounted


def test_which_images_are_kept_is_decided_by_the_seed() -> None:
    dataset = make_dataset(per_class=20)
    stream = build_stream(dataset, StreamConfig(tasks=2, labels_per_class=15))
    learned = stream.experience(0)
    kept = [Coreset(12, 8).after(learned, seed).images for seed in (1, 1, 2)]
    assert np.array_equal(kept[0], kept[1])
    assert not np.array_equal(kept[0], kept[2])
