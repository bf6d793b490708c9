"""The setting: what the protocol says of streams, shown on generated cases."""

import gc
import random
import types
from collections import Counter
from typing import Any

import numpy as np
import pytest
from cifar_shape import cifar_shaped
from conftest import make_dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from distillmatch.config import StreamConfig
from distillmatch.errors import StreamError
from distillmatch.sources import UNKNOWN, Dataset, Part
from distillmatch.streams import (
    Stream,
    build_stream,
    validation_folds,
)

KINDS = ("uniform", "positive", "negative", "random", "task", "none")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Dataset, StreamConfig]:
    per_parent = draw(st.integers(1, 4))
    super_classes = draw(st.integers(2, 4))
    parents = super_classes * draw(st.integers(1, 3))
    classes = parents * per_parent
    per_class = draw(st.integers(4, 25))
    dataset = make_dataset(classes, per_class, 2, parents, super_classes)
    kind = draw(st.sampled_from(KINDS))
    options: dict[str, object] = {"unlabeled": kind, "seed": draw(st.integers(0, 10**6))}
    options["splits"] = draw(st.sampled_from(["hashed", "authors"]))
    # In the groups of recipe `paper` a task may see its own super-class; see test_classes.py.
    options["recipe"] = "as-written"
    options["labels_per_class"] = draw(st.integers(1, per_class))
    if kind in ("positive", "negative") or draw(st.booleans()):
        options["order"] = "parent"
    else:
        options["tasks"] = draw(st.sampled_from([t for t in range(1, 9) if classes % t == 0]))
    if kind == "random":
        options["random_classes"] = draw(st.integers(1, classes))
    if draw(st.booleans()):
        options["unlabeled_per_task"] = draw(st.integers(0, 30))
    return dataset, StreamConfig(**options)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_every_stream_keeps_the_rules_of_the_setting(case: tuple[Dataset, StreamConfig]) -> None:
    dataset, config = case
    stream = build_stream(dataset, config)
    labels = dataset.train.labels
    classes = [c for task in stream.tasks for c in task.classes]
    assert sorted(classes) == list(range(len(dataset.class_names)))
    labeled = np.concatenate([task.labeled for task in stream.tasks])
    unlabeled = np.concatenate([task.unlabeled for task in stream.tasks])
    assert len(np.unique(labeled)) == len(labeled)
    assert len(np.unique(unlabeled)) == len(unlabeled), "no unlabeled image in two tasks"
    assert not set(labeled) & set(unlabeled)
    for task in stream.tasks:
        counts = Counter(labels[task.labeled].tolist())
        assert counts == dict.fromkeys(task.classes, config.labels_per_class)
        assert set(labels[task.unlabeled]) <= set(task.unlabeled_classes)
        assert set(dataset.test.labels[task.test]) == set(task.classes)
        if config.unlabeled_per_task is not None:
            assert len(task.unlabeled) <= config.unlabeled_per_task
    assert sum(len(task.test) for task in stream.tasks) == len(dataset.test)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_a_class_is_divided_equally_over_the_tasks_that_show_it(
    case: tuple[Dataset, StreamConfig],
) -> None:
    dataset, config = case
    config = config.replace(unlabeled_per_task=None)
    stream = build_stream(dataset, config)
    for c in range(len(dataset.class_names)):
        of_class = int((dataset.train.labels == c).sum()) - (config.labels_per_class or 0)
        shown_in = [task for task in stream.tasks if c in task.unlabeled_classes]
        shown = [int((dataset.train.labels[task.unlabeled] == c).sum()) for task in shown_in]
        if of_class < len(shown_in):
            assert sorted(shown) == [0] * (len(shown_in) - of_class) + [1] * of_class
        elif shown_in:
            assert shown == [of_class // len(shown_in)] * len(shown_in)


def test_of_more_images_than_a_task_may_show_some_are_drawn_at_random() -> None:
    dataset = make_dataset(6, 30)
    config = StreamConfig(tasks=3, labels_per_class=10, seed=0)
    whole = [set(task.unlabeled.tolist()) for task in build_stream(dataset, config).tasks]
    drawn = []
    for seed in (0, 1):
        limited = config.replace(unlabeled_per_task=12, seed=seed)
        tasks = build_stream(dataset, limited).tasks
        of_seed = [sorted(task.unlabeled.tolist()) for task in tasks]
        assert [len(one) for one in of_seed] == [12, 12, 12]
        drawn.append(of_seed)
    assert all(set(some) <= all_of for some, all_of in zip(drawn[0], whole, strict=True))
    cut = [sorted(all_of)[:12] for all_of in whole]
    assert all(some != first for some, first in zip(drawn[0], cut, strict=True)), "not the first"
    places = [[sorted(whole[i]).index(one) for one in some] for i, some in enumerate(drawn[0])]
    assert places[0] != places[1], "each task draws by itself"
    assert drawn[0] != drawn[1]


def test_classes_of_fewer_images_than_tasks_are_dealt_to_all_tasks_in_turn() -> None:
    """Six classes of two unlabeled images each: none is lost, and no task is without."""
    dataset = make_dataset(6, 3)
    stream = build_stream(dataset, StreamConfig(tasks=6, labels_per_class=1))
    assert [len(task.unlabeled) for task in stream.tasks] == [2] * 6
    stream = build_stream(dataset, StreamConfig(tasks=3, labels_per_class=1))
    assert [len(task.unlabeled) for task in stream.tasks] == [4] * 3


@settings(max_examples=60, deadline=None)
@given(cases())
def test_each_kind_shows_the_classes_that_the_protocol_names(
    case: tuple[Dataset, StreamConfig],
) -> None:
    dataset, config = case
    stream = build_stream(dataset, config)
    tree = dataset.tree
    assert tree is not None
    everything = set(range(len(dataset.class_names)))
    mapped: dict[int, set[int]] = {}
    for task in stream.tasks:
        shown = set(task.unlabeled_classes)
        parent = tree.parent_of_class[task.classes[0]]
        own = tree.super_class_of_parent[parent]
        own_classes = {
            c for c in everything if tree.super_class_of_parent[tree.parent_of_class[c]] == own
        }
        supers = {tree.super_class_of_parent[tree.parent_of_class[c]] for c in shown}
        if config.unlabeled == "uniform":
            assert shown == everything
        elif config.unlabeled == "task":
            assert shown == set(task.classes)
        elif config.unlabeled == "none":
            assert not shown and not len(task.unlabeled)
        elif config.unlabeled == "positive":
            assert shown == own_classes
        elif config.unlabeled == "negative":
            assert len(supers) == 1 and own not in supers
            assert mapped.setdefault(own, supers) == supers
        else:
            assert len(task.unlabeled_classes) == len(shown) == config.random_classes
        if config.order == "parent":
            assert set(task.classes) == {c for c in everything if tree.parent_of_class[c] == parent}
    if config.unlabeled == "negative":
        images = [next(iter(s)) for s in mapped.values()]
        assert len(set(images)) == len(images), "a derangement uses each super-class once"


@pytest.mark.parametrize(
    ("options", "labeled", "unlabeled", "shown"),
    [
        ({"tasks": 10}, {1000}, {4000}, {10}),
        ({"unlabeled": "positive"}, {500}, {1995, 2000}, set(range(1, 21))),
        ({"order": "parent", "unlabeled": "random"}, {500}, {2000}, {4}),
    ],
)
def test_the_protocols_check_figures(
    options: dict[str, Any], labeled: set[int], unlabeled: set[int], shown: set[int]
) -> None:
    """Labeled and unlabeled images a task, and how many tasks show a class."""
    stream = build_stream(cifar_shaped(), StreamConfig(**options))
    assert len(stream) == options.get("tasks", 20)
    assert {len(task.labeled) for task in stream.tasks} == labeled
    assert {len(task.unlabeled) for task in stream.tasks} == unlabeled
    counts = Counter(c for task in stream.tasks for c in task.unlabeled_classes)
    assert set(counts.values()) <= shown


def describe(stream: Stream) -> list[list[object]]:
    return [
        [task.classes, task.labeled.tolist(), task.unlabeled.tolist(), task.unlabeled_classes]
        for task in stream.tasks
    ]


@pytest.mark.parametrize("splits", ["hashed", "authors"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_depends_on_its_seed_and_on_no_global_state(kind: Any, splits: Any) -> None:
    dataset = make_dataset()
    config = StreamConfig(unlabeled=kind, order="parent", splits=splits)
    np.random.seed(1)
    random.seed(1)
    first = describe(build_stream(dataset, config))
    np.random.seed(2)
    random.seed(2)
    assert describe(build_stream(dataset, config)) == first
    assert describe(build_stream(dataset, config.replace(seed=2))) != first


def test_a_stream_is_the_same_on_every_machine_and_version() -> None:
    """The first integers of SHAKE-256 for this seed, computed apart, fix the class order."""
    import hashlib

    raw = hashlib.shake_256(b"7/class order").digest(8 * 12)
    keys = [int.from_bytes(raw[i : i + 8], "little") for i in range(0, 96, 8)]
    expected = sorted(range(12), key=lambda i: keys[i])
    stream = build_stream(make_dataset(), StreamConfig(tasks=3, seed=7))
    assert list(stream.class_order) == expected


def test_given_shares_sizes_and_class_orders_are_followed() -> None:
    dataset = make_dataset(per_class=20)
    for share, labeled in ((None, 16), (0.5, 40)):
        tasks = build_stream(dataset, StreamConfig(tasks=3, label_fraction=share)).tasks
        assert [len(task.labeled) for task in tasks] == [labeled] * 3
    names = ("class 2", "class 0", "class 3", "class 1")
    config = StreamConfig(task_sizes=(1, 3), class_order=names)
    tasks = build_stream(make_dataset(classes=4, parents=None), config).tasks
    assert [task.classes for task in tasks] == [(2,), (0, 3, 1)]


def test_images_of_unlabeled_folders_are_divided_over_the_tasks() -> None:
    dataset = make_dataset(unknown=31)
    stream = build_stream(dataset, StreamConfig(tasks=3, label_fraction=1.0))
    for task in stream.tasks:
        assert (dataset.train.labels[task.unlabeled] == UNKNOWN).sum() == 10
    with pytest.raises(StreamError, match="unlabeled must be 'uniform'"):
        build_stream(dataset, StreamConfig(tasks=3, unlabeled="task"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tasks": 13}, "tasks must be at most the 12 classes"),
        ({"tasks": 5}, r"must divide the 12 classes .*1, 2, 3, 4, 6, 12"),
        ({"task_sizes": (5, 5)}, "must add up to the 12 classes of the source, not to 10"),
        ({"tasks": 3, "labels_per_class": 21}, "class 'class 0' .* only 20 training images"),
        ({"order": "parent", "tasks": 4}, "tasks must be 6 with order 'parent'"),
        ({"class_order": ("class 1", "cat")}, "'cat', which is not a class"),
        ({"class_order": ("class 1",)}, "each of the 12 classes"),
        ({"tasks": 3, "unlabeled": "random", "random_classes": 13}, "at most the 12 classes"),
        ({"tasks": 10**12}, "tasks must be at most the 12 classes"),
        ({"tasks": 3, "labels_per_class": 10**30}, "only 20 training images"),
    ],
)
def test_a_stream_that_cannot_be_made_is_refused_in_one_sentence(
    options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(StreamError, match=sentence) as refusal:
        build_stream(make_dataset(), StreamConfig(**options))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", ["positive", "negative"])
def test_streams_by_super_class_are_refused_without_a_tree(kind: str) -> None:
    with pytest.raises(StreamError, match="needs a source with a class tree"):
        build_stream(make_dataset(parents=None), StreamConfig(unlabeled=kind))


def reachable(start: object) -> list[object]:
    """Everything that can be reached from an object, without going through code and modules."""
    found: dict[int, object] = {}
    open_ends = [start]
    while open_ends:
        thing = open_ends.pop()
        if id(thing) in found or isinstance(thing, type | types.ModuleType | types.FunctionType):
            continue
        found[id(thing)] = thing
        open_ends += gc.get_referents(thing)
        if isinstance(thing, np.ndarray) and thing.base is not None:
            open_ends.append(thing.base)
    return list(found.values())


def test_the_truth_of_unlabeled_images_cannot_be_reached_from_what_a_method_is_given() -> None:
    dataset = make_dataset()
    stream = build_stream(dataset, StreamConfig(tasks=3))
    given_to_method = stream.experience(1)
    truth = stream.true_slots_of_unlabeled(1)
    assert len(truth) == len(given_to_method.unlabeled) > 0
    arrays = [thing for thing in reachable(given_to_method) if isinstance(thing, np.ndarray)]
    assert any(array is given_to_method.labels for array in arrays)
    for array in arrays:
        assert array is not dataset.train.labels
        assert not np.shares_memory(array, dataset.train.labels)
        assert not np.shares_memory(array, dataset.train.images)
        assert array.shape != truth.shape or not np.array_equal(array, truth)
    for thing in reachable(given_to_method):
        assert not isinstance(thing, Dataset | Stream | Part)


def test_an_experience_holds_the_tasks_images_with_labels_in_learning_order() -> None:
    dataset = make_dataset()
    stream = build_stream(dataset, StreamConfig(tasks=3))
    for number, task in enumerate(stream.tasks):
        given_to_method = stream.experience(number)
        assert np.array_equal(given_to_method.images, dataset.train.images[task.labeled])
        assert np.array_equal(given_to_method.unlabeled, dataset.train.images[task.unlabeled])
        expected = [stream.class_order.index(c) for c in dataset.train.labels[task.labeled]]
        assert given_to_method.labels.tolist() == expected
        assert given_to_method.past == 4 * number and given_to_method.seen == 4 * (number + 1)
        test = stream.evaluation_part(number)
        assert set(test.labels) == set(range(4 * number, 4 * number + 4))


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(2, 4))
def test_validation_folds_hold_out_training_data_of_the_first_tasks_only(
    case: tuple[Dataset, StreamConfig], folds: int
) -> None:
    dataset, config = case
    stream = build_stream(dataset, config)
    first = max(1, len(stream) // 2)
    if (config.labels_per_class or 0) < folds:
        with pytest.raises(StreamError, match="too few for"):
            validation_folds(stream, folds)
        return
    parts = validation_folds(stream, folds)
    assert [len(part) for part in parts] == [first] * folds
    for number in range(first):
        held_out = [part.tasks[number].test for part in parts]
        together = np.sort(np.concatenate(held_out))
        assert np.array_equal(together, np.sort(stream.tasks[number].labeled))
        for part in parts:
            task = part.tasks[number]
            assert part.evaluated_on == "train"
            assert not set(task.labeled) & set(task.test)
            assert len(task.labeled) + len(task.test) == len(stream.tasks[number].labeled)
            assert np.array_equal(task.unlabeled, stream.tasks[number].unlabeled)
            shown = part.evaluation_part(number)
            assert np.array_equal(shown.images, dataset.train.images[task.test])
        sizes = [
            Counter(dataset.train.labels[images].tolist())[c]
            for images in held_out
            for c in stream.tasks[number].classes
        ]
        assert max(sizes) - min(sizes) <= 1
