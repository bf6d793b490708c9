"""The splits of the paper's authors against their rule, written out plainly with their generators.

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
from cifar_shape import CLASSES, cifar_shaped

from distillmatch.config import StreamConfig
from distillmatch.sources import Dataset, load_source
from distillmatch.sources.cifar100 import FILE_MD5S, FOLDER
from distillmatch.streams import build_stream

LABELS = 100


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
