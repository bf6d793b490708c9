"""Splits against their rules: the authors', written out plainly, and scikit-learn's own.

They are compared on labels shaped as those of CIFAR-100, and on CIFAR-100 itself if it is in the
user's cache or in the folder that DISTILLMATCH_CIFAR100 names.
"""

import os
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from made_images import CLASSES, cifar_shaped
from sklearn.model_selection import train_test_split

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, StreamError
from distillmatch.sources import Dataset, load_source
from distillmatch.sources.cifar100 import FILE_MD5S, FOLDER
from distillmatch.streams import build_stream
from distillmatch.streams.splits import stratified_labels

LABELS = 100
SHARES = {"0.8": 0.008, "5": 0.05, "25": 0.25}


@cache
def real_cifar100() -> Dataset:
    folder = Path(os.environ.get("DISTILLMATCH_CIFAR100", "~/.cache/distillmatch")).expanduser()
    if not any(all((f / name).is_file() for name in FILE_MD5S) for f in (folder, folder / FOLDER)):
        pytest.skip("CIFAR-100 is not here")
    return load_source(StreamConfig(source="cifar100", data_dir=folder))


def authors_tasks(dataset: Dataset, order: str, seed: int, tasks: int) -> list[list[int]]:
    """Return the classes of each task, in the order in which they learn them."""
    tree = dataset.tree
    assert tree is not None
    if order == "parent":
        of_parents = [
            [c for c in range(CLASSES) if tree.parent_of_class[c] == parent] for parent in range(20)
        ]
        random.seed(seed)
        random.shuffle(of_parents)
        return of_parents
    classes = list(range(CLASSES))
    if seed != 0:
        random.seed(seed)
        random.shuffle(classes)
    size = CLASSES // tasks
    return [classes[start : start + size] for start in range(0, CLASSES, size)]


def authors_labels(
    dataset: Dataset, seed: int
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return each class's labeled images, and the others in the order in which they are left."""
    in_file = dataset.train.labels.tolist()
    labeled, rest = {}, {}
    for c in range(CLASSES):
        images = [number for number, label in enumerate(in_file) if label == c]
        permuted = [images[place] for place in np.random.RandomState(seed).permutation(500)]
        labeled[c], rest[c] = permuted[:LABELS], permuted[LABELS:]
    return labeled, rest


def authors_unlabeled(
    dataset: Dataset,
    tasks: list[list[int]],
    shown: list[set[int]],
    rest: dict[int, list[int]],
    seed: int,
) -> list[set[int]]:
    """Return the unlabeled images of each task, of which `shown` says the classes."""
    everything = [number for task in tasks for c in task for number in rest[c]]
    of_classes: dict[int, list[int]] = {c: [] for c in range(CLASSES)}
    for place in np.random.RandomState(seed).permutation(len(everything)):
        of_classes[int(dataset.train.labels[everything[place]])].append(everything[place])
    received: list[set[int]] = [set() for _ in tasks]
    for c, of_class in of_classes.items():
        holders = [task for task, classes in enumerate(shown) if c in classes]
        each = len(of_class) // len(holders) if holders else 0
        for place, holder in enumerate(holders):
            received[holder] |= set(of_class[place * each : (place + 1) * each])
    return received


@pytest.mark.parametrize("data", [cifar_shaped, real_cifar100])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("order", "tasks", "unlabeled"),
    [
        ("random", 10, "uniform"),
        ("random", 20, "uniform"),
        ("parent", 20, "uniform"),
        ("parent", 20, "positive"),
        ("parent", 20, "negative"),
        ("parent", 20, "random"),
    ],
)
def test_a_stream_has_the_authors_classes_labels_and_unlabeled_images(
    order: Any, tasks: int, unlabeled: Any, seed: int, data: Callable[[], Dataset]
) -> None:
    dataset = data()
    config = StreamConfig(order=order, unlabeled=unlabeled, splits="authors", seed=seed)
    stream = build_stream(dataset, config.replace(tasks=tasks))
    classes = authors_tasks(dataset, order, seed, tasks)
    assert [list(task.classes) for task in stream.tasks] == classes
    labeled, rest = authors_labels(dataset, seed)
    for task in stream.tasks:
        assert set(task.labeled.tolist()) == {n for c in task.classes for n in labeled[c]}
    shown = [set(task.unlabeled_classes) for task in stream.tasks]
    received = authors_unlabeled(dataset, classes, shown, rest, seed)
    assert [set(task.unlabeled.tolist()) for task in stream.tasks] == received


@pytest.mark.parametrize(("unlabeled", "of_task"), [("random", False), ("negative", True)])
def test_classes_that_the_authors_drew_without_a_seed_are_ours(
    unlabeled: str, of_task: bool
) -> None:
    """The classes of a task in `random`, the groups of the parents in `negative`."""
    config = StreamConfig(order="parent", unlabeled=unlabeled, seed=2)
    shown = [
        {
            task.classes if of_task else number: task.unlabeled_classes
            for number, task in enumerate(build_stream(cifar_shaped(), given).tasks)
        }
        for given in (config, config.replace(splits="authors"))
    ]
    assert shown[0] == shown[1]


def test_a_given_order_is_kept_and_the_labels_are_the_authors() -> None:
    dataset = cifar_shaped()
    names = tuple(f"class {c}" for c in reversed(range(CLASSES)))
    config = StreamConfig(tasks=10, class_order=names, splits="authors")
    stream = build_stream(dataset, config)
    assert stream.class_order == tuple(reversed(range(CLASSES)))
    labeled, _ = authors_labels(dataset, 1)
    assert set(stream.tasks[0].labeled.tolist()) == {n for c in range(90, 100) for n in labeled[c]}


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
