"""The setting: what the protocol says of streams, shown on generated cases."""

import hashlib
import random
from collections import Counter
from typing import Any, get_args

import numpy as np
import pytest
from conftest import make_dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from made_images import cifar_shaped

from distillmatch.config import StreamConfig
from distillmatch.config.stream import Splits
from distillmatch.errors import StreamError
from distillmatch.sources import UNKNOWN, Dataset
from distillmatch.streams import Stream, build_stream

KINDS = ("uniform", "positive", "negative", "random", "task", "none")
Case = tuple[Dataset, StreamConfig]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    per_parent = draw(st.integers(1, 4))
    super_classes = draw(st.integers(2, 4))
    parents = super_classes * draw(st.integers(1, 3))
    classes = parents * per_parent
    per_class = draw(st.integers(4, 25))
    dataset = make_dataset(classes, per_class, 2, parents, super_classes)
    kind = draw(st.sampled_from(KINDS))
    options: dict[str, Any] = {"unlabeled": kind, "seed": draw(st.integers(0, 10**6))}
    options["splits"] = draw(st.sampled_from(["hashed", "authors"]))
    # In the groups of recipe `paper` a task may see its own super-class; see test_classes.py.
    options["recipe"] = "as-written"
    options["labels_per_class"] = draw(st.integers(1, per_class))
    options["repetition"] = draw(st.sampled_from([0.0, 0.0, 0.3, 0.7, 1.0]))
    options["coreset"] = draw(st.integers(0, 40))
    if kind in ("positive", "negative") or draw(st.booleans()):
        options["order"] = "parent"
        options["distractors"] = draw(st.sampled_from([0, classes - parents]))
    else:
        options["distractors"] = draw(st.integers(0, classes - 1) | st.just(0))
        left = classes - options["distractors"]
        options["tasks"] = draw(st.sampled_from([t for t in range(1, 9) if left % t == 0]))
    if kind == "random":
        options["random_classes"] = draw(st.integers(1, classes))
    if draw(st.booleans()):
        options["unlabeled_per_task"] = draw(st.integers(0, 30))
    return dataset, StreamConfig(**options)


def classes_of(dataset: Dataset, images: np.ndarray) -> Counter[int]:
    return Counter(dataset.train.labels[images].tolist())


def comes_back(config: StreamConfig, task: int, place: int) -> bool:
    """Whether the class at a place of the learning order returns, by the hash's own integer."""
    raw = hashlib.shake_256(f"{config.seed}/repetition/{task}".encode()).digest(8 * (place + 1))
    return (int.from_bytes(raw[-8:], "little") >> 11) / 2**53 < config.repetition


def labels_by_rule(stream: Stream) -> list[dict[int, int]]:
    """How many labels of which classes each task has: those of a class are dealt in turn."""
    expected: list[dict[int, int]] = [{} for _ in stream.tasks]
    for place, c in enumerate(stream.class_order):
        first = next(i for i, task in enumerate(stream.tasks) if c in task.classes)
        later = range(first + 1, len(stream))
        appears = [first, *(i for i in later if comes_back(stream.config, i, place))]
        for label in range(stream.config.labels_per_class or 0):
            task = expected[appears[label % len(appears)]]
            task[c] = task.get(c, 0) + 1
    return expected


@settings(max_examples=200, deadline=None)
@given(cases())
def test_every_stream_keeps_the_rules_of_the_setting(case: Case) -> None:
    dataset, config = case
    stream = build_stream(dataset, config)
    everything = set(range(len(dataset.class_names)))
    distractors = everything - set(stream.class_order)
    assert len(stream.class_order) == len(everything) - config.distractors
    assert len(distractors) == config.distractors
    used = np.concatenate([i for task in stream.tasks for i in (task.labeled, task.unlabeled)])
    assert len(np.unique(used)) == len(used), "no image is labeled twice, or seen in two tasks"
    for number, (task, expected) in enumerate(
        zip(stream.tasks, labels_by_rule(stream), strict=True)
    ):
        assert classes_of(dataset, task.labeled) == expected
        returning = {stream.class_order[slot] for slot in stream.returning(number)}
        assert returning | set(task.classes) == set(expected)
        assert not returning & set(task.classes)
        assert set(dataset.train.labels[task.unlabeled]) <= set(task.unlabeled_classes)
        truth = stream.true_slots_of_unlabeled(number)
        assert all(
            (slot >= len(stream.class_order)) == (c in distractors)
            for slot, c in zip(truth, dataset.train.labels[task.unlabeled], strict=True)
        )
        assert set(dataset.test.labels[task.test]) == set(task.classes)
        if config.unlabeled_per_task is not None:
            assert len(task.unlabeled) <= config.unlabeled_per_task
    assert sum(len(task.test) for task in stream.tasks) == 2 * len(stream.class_order)
    without = {"repetition": 0.0, "distractors": 0, "tasks": config.tasks and 1}
    plain = build_stream(dataset, config.replace(**without))
    labeled, before = (np.concatenate([t.labeled for t in one.tasks]) for one in (stream, plain))
    kept = before[~np.isin(dataset.train.labels[before], list(distractors))]
    assert np.array_equal(np.sort(labeled), np.sort(kept)), "the same images as without both"


@settings(max_examples=100, deadline=None)
@given(cases())
def test_a_class_is_divided_equally_over_the_tasks_that_show_it(case: Case) -> None:
    dataset, config = case
    stream = build_stream(dataset, config.replace(unlabeled_per_task=None))
    for c in range(len(dataset.class_names)):
        labels = (config.labels_per_class or 0) * (c in stream.class_order)
        of_class = int((dataset.train.labels == c).sum()) - labels
        shown_in = [task for task in stream.tasks if c in task.unlabeled_classes]
        shown = [classes_of(dataset, task.unlabeled)[c] for task in shown_in]
        if of_class < len(shown_in):
            assert sorted(shown) == [0] * (len(shown_in) - of_class) + [1] * of_class
        elif shown_in:
            assert shown == [of_class // len(shown_in)] * len(shown_in)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_each_kind_shows_the_classes_that_the_protocol_names(case: Case) -> None:
    dataset, config = case
    stream, tree = build_stream(dataset, config), dataset.tree
    assert tree is not None
    everything = set(range(len(dataset.class_names)))
    learned = set(stream.class_order)
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
            assert shown == set(classes_of(dataset, task.labeled)) | everything - learned
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
            assert set(task.classes) == {c for c in learned if tree.parent_of_class[c] == parent}
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


@pytest.mark.parametrize("splits", ["hashed", "authors"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_depends_on_its_seed_and_on_no_global_state(kind: Any, splits: Any) -> None:
    config = StreamConfig(unlabeled=kind, order="parent", splits=splits, repetition=0.5)
    digests = []
    for asked, state in ((config, 1), (config, 2), (config.replace(seed=2), 2)):
        np.random.seed(state)
        random.seed(state)
        digests.append(build_stream(make_dataset(), asked).digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_stream_is_the_same_on_every_machine_and_version() -> None:
    """The first integers of SHAKE-256 for this seed, computed apart, fix the class order."""
    raw = hashlib.shake_256(b"7/class order").digest(8 * 12)
    keys = [int.from_bytes(raw[i : i + 8], "little") for i in range(0, 96, 8)]
    expected = sorted(range(12), key=lambda i: keys[i])
    stream = build_stream(make_dataset(), StreamConfig(tasks=3, seed=7))
    assert list(stream.class_order) == expected


def test_streams_are_those_of_earlier_versions() -> None:
    """One hash of the digests of many, as they were before classes could come back."""
    digests = [
        build_stream(
            make_dataset(), StreamConfig(unlabeled=kind, order="parent", splits=splits, seed=3)
        ).digest
        for kind in KINDS
        for splits in get_args(Splits)
    ]
    found = hashlib.sha256(" ".join(digests).encode()).hexdigest()
    assert found == "dfde9e77e0e3a07447ee04103cb1732168630be401fb38cf2e138ef1b627a326"


def test_given_shares_sizes_and_class_orders_are_followed() -> None:
    dataset = make_dataset(per_class=20)
    for share, labeled in ((None, 16), (0.5, 40)):
        tasks = build_stream(dataset, StreamConfig(tasks=3, label_fraction=share)).tasks
        assert [len(task.labeled) for task in tasks] == [labeled] * 3
    names = ("class 2", "class 0", "class 3", "class 1")
    config = StreamConfig(task_sizes=(1, 3), class_order=names)
    for classes, distractors in ((4, 0), (9, 5)):
        other = make_dataset(classes, parents=None)
        tasks = build_stream(other, config.replace(distractors=distractors)).tasks
        assert [task.classes for task in tasks] == [(2,), (0, 3, 1)]


def test_distractors_are_drawn_by_the_seed_and_each_parent_keeps_a_class() -> None:
    learned = set()
    for seed in range(20):
        config = StreamConfig(order="parent", distractors=6, seed=seed)
        stream = build_stream(make_dataset(), config)
        assert stream.task_sizes == (1,) * 6
        learned.add(frozenset(stream.class_order))
    assert len(learned) > 10


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
        ({"order": "parent"}, "order 'parent' needs a source with a class tree"),
        ({"unlabeled": "negative"}, "'negative' needs a source with a class tree"),
        ({"distractors": 12}, "must leave a class to learn: at most 11 of the 12 classes"),
        ({"order": "parent", "distractors": 7}, "leave a class of each parent to learn: at most 6"),
        ({"tasks": 4, "distractors": 2}, "of the source without 2 distractors .*1, 2, 5, 10"),
        ({"task_sizes": (6, 6), "distractors": 2}, "add up to the 10 classes of .*, not to 12"),
        ({"class_order": ("class 1",), "distractors": 2}, "must name 10 of the 12 classes"),
        ({"tasks": 3, "labels_per_class": 10**30}, "only 20 training images"),
    ],
)
def test_a_stream_that_cannot_be_made_is_refused_in_one_sentence(
    options: dict[str, object], sentence: str
) -> None:
    parents = None if "tree" in sentence else 6
    with pytest.raises(StreamError, match=sentence) as refusal:
        build_stream(make_dataset(parents=parents), StreamConfig(**options))
    assert "\n" not in str(refusal.value)


def test_the_truth_of_unlabeled_images_cannot_be_reached_from_what_a_method_is_given() -> None:
    dataset = make_dataset()
    stream = build_stream(dataset, StreamConfig(tasks=3))
    learned, truth = stream.experience(1), stream.true_slots_of_unlabeled(1)
    assert len(truth) == len(learned.unlabeled) > 0
    for held in vars(learned).values():
        assert type(held) in (int, tuple, np.ndarray)
        if isinstance(held, np.ndarray):
            assert held.base is None, "a copy of its own"
            assert held.shape != truth.shape or not np.array_equal(held, truth)


@settings(max_examples=40, deadline=None)
@given(cases())
def test_an_experience_holds_the_tasks_images_with_labels_in_learning_order(case: Case) -> None:
    dataset, config = case
    stream, seen = build_stream(dataset, config), 0
    for number, (task, learned) in enumerate(zip(stream.tasks, stream, strict=True)):
        assert np.array_equal(learned.images, dataset.train.images[task.labeled])
        assert np.array_equal(learned.unlabeled, dataset.train.images[task.unlabeled])
        expected = [stream.class_order.index(c) for c in dataset.train.labels[task.labeled]]
        assert learned.labels.tolist() == expected
        past, seen = seen, seen + len(task.classes)
        assert (learned.past, learned.seen) == (past, seen)
        assert set(stream.evaluation_part(number).labels) == set(range(past, seen))


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(2, 4))
def test_validation_folds_hold_out_training_data_of_the_first_tasks_only(
    case: Case, folds: int
) -> None:
    stream = build_stream(*case)
    labels, first = stream.dataset.train.labels, stream.tasks[: max(1, len(stream) // 2)]
    fewest = min(
        classes_of(stream.dataset, task.labeled)[c] for task in first for c in task.classes
    )
    if fewest < folds:
        with pytest.raises(StreamError, match="too few for"):
            stream.validation_folds(folds)
        return
    parts = stream.validation_folds(folds)
    assert [len(part) for part in parts] == [len(first)] * folds
    for number, whole in enumerate(first):
        own = whole.labeled[np.isin(labels[whole.labeled], whole.classes)]
        held_out = [part.tasks[number].test for part in parts]
        assert np.array_equal(np.sort(np.concatenate(held_out)), np.sort(own))
        for part in parts:
            task = part.tasks[number]
            assert part.evaluated_on == "train"
            assert np.array_equal(task.labeled, np.setdiff1d(whole.labeled, task.test))
            assert np.array_equal(task.unlabeled, whole.unlabeled)
            shown = part.evaluation_part(number)
            assert np.array_equal(shown.images, stream.dataset.train.images[task.test])
        for c in whole.classes:
            sizes = [(labels[images] == c).sum() for images in held_out]
            assert max(sizes) - min(sizes) <= 1
