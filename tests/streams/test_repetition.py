"""Classes that come back and classes that are never labeled, against the rules written out."""

import hashlib
import json
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
from distillmatch.sources import Dataset
from distillmatch.streams import (
    Coreset,
    Stream,
    build_stream,
    stored_sizes,
    validation_folds,
)

KINDS = ("uniform", "positive", "negative", "random", "task", "none")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Dataset, StreamConfig]:
    kind, splits = draw(st.sampled_from(KINDS)), draw(st.sampled_from(["hashed", "authors"]))
    by_parent = kind in ("positive", "negative") or draw(st.booleans())
    options: dict[str, Any] = {"unlabeled": kind, "splits": splits}
    options["order"] = "parent" if by_parent else "random"
    options["distractors"] = draw(st.integers(0, 6) if by_parent else st.sampled_from([0, 2, 6]))
    if not by_parent:
        options["tasks"] = draw(st.sampled_from([1, 2]))
    options["repetition"] = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    options["labels_per_class"] = draw(st.integers(1, 9))
    options["coreset"] = draw(st.integers(0, 30))
    return make_dataset(per_class=10), StreamConfig(**options, seed=draw(st.integers(0, 999)))


def comes_back(seed: int, task: int, place: int, probability: float) -> bool:
    """Whether the class at a place of the learning order returns, by the hash's own integer."""
    raw = hashlib.shake_256(f"{seed}/repetition/{task}".encode()).digest(8 * (place + 1))
    number = int.from_bytes(raw[-8:], "little")
    return (number >> 11) / 2**53 < probability


def counts_of(dataset: Dataset, images: np.ndarray) -> Counter[int]:
    return Counter(dataset.train.labels[images].tolist())


@settings(max_examples=150, deadline=None)
@given(cases())
def test_labels_are_divided_over_the_tasks_in_which_a_class_appears(
    case: tuple[Dataset, StreamConfig],
) -> None:
    dataset, config = case
    stream = build_stream(dataset, config)
    sizes, labels = stream.task_sizes, config.labels_per_class or 0
    expected: list[dict[int, int]] = [{} for _ in stream.tasks]
    for place, c in enumerate(stream.class_order):
        first = next(i for i, task in enumerate(stream.tasks) if c in task.classes)
        later = range(first + 1, len(stream))
        back = [i for i in later if comes_back(config.seed, i, place, config.repetition)]
        appears = [first, *back][:labels]
        for turn, i in enumerate(appears):
            extra = turn < labels % len(appears)
            expected[i][c] = labels // len(appears) + extra
    for number, task in enumerate(stream.tasks):
        assert counts_of(dataset, task.labeled) == expected[number]
        assert set(dataset.test.labels[task.test]) == set(task.classes)
        returning = [stream.class_order[slot] for slot in stream.returning(number)]
        assert (
            returning == [c for c in stream.class_order if c in expected[number]][: len(returning)]
        )
        assert set(expected[number]) == {*returning, *task.classes}
        given_to_method = stream.experience(number)
        assert given_to_method.seen == sum(sizes[: number + 1])
        assert set(given_to_method.labels) <= set(range(given_to_method.seen))


@settings(max_examples=150, deadline=None)
@given(cases())
def test_repetition_divides_the_same_labels_and_distractors_take_away_those_of_their_classes(
    case: tuple[Dataset, StreamConfig],
) -> None:
    dataset, config = case
    plain = build_stream(dataset, config.replace(repetition=0.0, distractors=0))
    stream = build_stream(dataset, config)
    distractors = set(range(12)) - set(stream.class_order)
    assert len(distractors) == config.distractors
    used = np.concatenate([task.labeled for task in stream.tasks])
    before = np.concatenate([task.labeled for task in plain.tasks])
    kept = [i for i in before if dataset.train.labels[i] not in distractors]
    assert np.array_equal(np.sort(used), np.sort(kept))
    unlabeled = np.concatenate([task.unlabeled for task in stream.tasks])
    assert len(np.unique(unlabeled)) == len(unlabeled) and not set(unlabeled) & set(used)
    for number, task in enumerate(stream.tasks):
        found = set(counts_of(dataset, task.unlabeled))
        assert found <= set(task.unlabeled_classes)
        if config.unlabeled == "task":
            labeled = set(counts_of(dataset, task.labeled))
            assert set(task.unlabeled_classes) == labeled | distractors
        truth = stream.true_slots_of_unlabeled(number)
        of_distractors = np.isin(dataset.train.labels[task.unlabeled], list(distractors))
        assert np.array_equal(truth >= len(stream.class_order), of_distractors)
    if config.unlabeled == "uniform":
        shown = counts_of(dataset, unlabeled)
        assert all(shown[c] == 10 // len(stream) * len(stream) for c in distractors)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_coreset_and_validation_folds_hold_classes_that_came_back(
    case: tuple[Dataset, StreamConfig],
) -> None:
    dataset, config = case
    stream, coreset = build_stream(dataset, config), Coreset(config.coreset, 8)
    given_so_far: Counter[bytes] = Counter()
    for number, stored in enumerate(stored_sizes(stream)):
        learned, before = stream.experience(number), coreset.labels.tolist()
        coreset = coreset.after(learned, config.seed)
        there = Counter([*before, *learned.labels.tolist()])
        each, left = divmod(config.coreset, learned.seen)
        quota = [each + (slot >= learned.seen - left) for slot in range(learned.seen)]
        assert Counter(coreset.labels.tolist()) == +Counter(
            {slot: min(there[slot], quota[slot]) for slot in range(learned.seen)}
        )
        given_so_far.update(image.tobytes() for image in learned.images)
        assert not Counter(image.tobytes() for image in coreset.images) - given_so_far
        assert stored == (len(coreset), coreset.bytes)
    if (config.labels_per_class or 0) >= 2 * len(stream):
        for fold in validation_folds(stream, 2):
            for task, whole in zip(fold.tasks, stream.tasks, strict=False):
                assert set(dataset.train.labels[task.test]) == set(task.classes)
                assert set(task.labeled) | set(task.test) == set(whole.labeled)


def test_a_class_that_came_back_is_stored_by_old_and_new_images() -> None:
    dataset = make_dataset(per_class=20)
    config = StreamConfig(tasks=2, labels_per_class=20, repetition=1.0, unlabeled="none")
    stream, coreset = build_stream(dataset, config), Coreset(12 * 8, 8)
    first, second = stream.experience(0), stream.experience(1)
    coreset = coreset.after(first, 1).after(second, 1)
    old = {image.tobytes() for image in first.images}
    stored = [image.tobytes() in old for image in coreset.images[coreset.labels < 6]]
    assert 12 < sum(stored) < 36, "of 10 stored and 10 new images of each of 6 classes, 8 are kept"


def test_a_larger_probability_lets_the_same_classes_return_and_more() -> None:
    returning, dataset = [], cifar_shaped()
    for probability in (0.2, 0.5, 1.0):
        stream = build_stream(dataset, StreamConfig(repetition=probability))
        returning.append({(i, slot) for i in range(10) for slot in stream.returning(i)})
    assert returning[0] < returning[1] < returning[2]
    assert [len(found) / 450 for found in returning] == pytest.approx([0.2, 0.5, 1.0], abs=0.06)


def test_each_parent_keeps_a_class_and_a_given_order_leaves_the_distractors_out() -> None:
    dataset = make_dataset()
    for seed in range(20):
        config = StreamConfig(order="parent", distractors=6, seed=seed)
        assert build_stream(dataset, config).task_sizes == (1,) * 6
    names = tuple(f"class {c}" for c in (3, 1, 11, 0))
    config = StreamConfig(tasks=2, class_order=names, distractors=8)
    assert [task.classes for task in build_stream(dataset, config).tasks] == [(3, 1), (11, 0)]
    drawn = {
        frozenset(
            build_stream(dataset, StreamConfig(tasks=5, distractors=2, seed=seed)).class_order
        )
        for seed in range(20)
    }
    assert len(drawn) > 10, "the seed decides which"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"distractors": 12}, "must leave a class to learn: at most 11 of the 12 classes"),
        (
            {"order": "parent", "distractors": 7},
            "must leave a class of each parent to learn: at most 6 of the 12 classes",
        ),
        ({"tasks": 4, "distractors": 2}, "of the source without 2 distractors .*1, 2, 5, 10"),
        ({"task_sizes": (6, 6), "distractors": 2}, "add up to the 10 classes of .*, not to 12"),
        (
            {"class_order": ("class 1",), "distractors": 2},
            "must name 10 of the 12 classes .*, not 1 names",
        ),
    ],
)
def test_distractors_that_cannot_be_are_refused_in_one_sentence(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(StreamError, match=sentence) as refusal:
        build_stream(make_dataset(), StreamConfig(**options))
    assert "\n" not in str(refusal.value)


def test_a_saved_stream_with_both_is_read_back_and_labels_of_later_classes_are_refused(
    tmp_path: Any,
) -> None:
    dataset, path = make_dataset(), tmp_path / "stream.json"
    built = build_stream(dataset, StreamConfig(tasks=5, distractors=2, repetition=0.5))
    built.save(path)
    read = Stream.load(path, dataset)
    assert read.digest == built.digest and read.config == built.config
    assert [read.returning(i) for i in range(5)] == [built.returning(i) for i in range(5)]
    content = json.loads(path.read_text())
    earlier, later = content["tasks"][1], content["tasks"][4]
    earlier["labeled"].append(later["labeled"].pop())
    path.write_text(json.dumps(content))
    with pytest.raises(StreamError, match="task 2: labeled images are not all of the task's"):
        Stream.load(path, dataset)
