"""The stratified split of later papers, against scikit-learn's own and against their lists."""

import os
from pathlib import Path

import numpy as np
import pytest
from cifar_shape import cifar_shaped
from conftest import make_dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split
from test_authors import real_cifar100

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, StreamError
from distillmatch.streams import build_stream
from distillmatch.streams.splits import stratified_labels

SHARES = {"0.8": 0.008, "5": 0.05, "25": 0.25}


def stream_config(share: float) -> StreamConfig:
    return StreamConfig(splits="stratified", label_fraction=share, unlabeled="task", tasks=10)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 30), min_size=1, max_size=6), st.floats(0.05, 0.95), st.randoms())
def test_labels_are_those_of_scikit_learn(sizes: list[int], share: float, random: object) -> None:
    """Classes of any sizes in any order; ties between classes are broken by the same lot."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    random.shuffle(labels)  # type: ignore[attr-defined]
    by_class = [np.flatnonzero(labels == c) for c in range(len(sizes))]
    try:
        orders, counts = stratified_labels(by_class, share)
    except StreamError:
        return
    found = {int(i) for order, count in zip(orders, counts, strict=True) for i in order[:count]}
    theirs, _ = train_test_split(
        np.arange(len(labels)), train_size=share, stratify=labels, random_state=0
    )
    assert found == set(theirs.tolist())
    for order, images in zip(orders, by_class, strict=True):
        assert sorted(order) == images.tolist()


@pytest.mark.parametrize("name", SHARES)
def test_the_labels_of_cifar100_are_those_that_were_published(name: str) -> None:
    """Where the lists are: in the folder that DISTILLMATCH_NNCSL names."""
    folder = Path(os.environ.get("DISTILLMATCH_NNCSL", "/nowhere"))
    if not folder.is_dir():
        pytest.skip("the published lists are not here")
    stream = build_stream(real_cifar100(), stream_config(SHARES[name]))
    published = np.loadtxt(folder / f"cifar100-{name}percent.txt", dtype=np.int64)
    assert {i for task in stream.tasks for i in task.labeled.tolist()} == set(published.tolist())


def test_classes_come_by_number_and_tasks_show_their_own_images_whatever_the_seed() -> None:
    dataset, config = cifar_shaped(), stream_config(0.05)
    streams = [build_stream(dataset, config.replace(seed=seed)) for seed in (0, 7)]
    for stream in streams:
        assert stream.class_order == tuple(range(100))
        for task in stream.tasks:
            assert len(task.labeled) == 250 and len(task.unlabeled) == 4750
            assert set(dataset.train.labels[task.unlabeled].tolist()) == set(task.classes)
    first, other = ([task.labeled.tolist() for task in stream.tasks] for stream in streams)
    assert first == other
    parents = build_stream(dataset, config.replace(order="parent", tasks=None))
    tree = dataset.tree
    assert tree is not None
    assert [tree.parent_of_class[task.classes[0]] for task in parents.tasks] == list(range(20))


def test_a_share_that_leaves_a_class_without_label_is_refused() -> None:
    with pytest.raises(StreamError, match="needs one of each for the 12 classes"):
        build_stream(make_dataset(per_class=10), StreamConfig(splits="stratified", tasks=3,
            label_fraction=0.05))  # fmt: skip
    with pytest.raises(StreamError, match="the smallest class of 2 images without a label"):
        stratified_labels([np.arange(90), np.arange(90, 92)], 0.1)
    with pytest.raises(ConfigError, match="labels_per_class goes with other splits"):
        StreamConfig(splits="stratified", labels_per_class=5)
