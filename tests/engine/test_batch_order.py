"""Which images the steps of a training take, beside passes that are cut by hand."""

from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from distillmatch.config import RunConfig
from distillmatch.engine.batch_order import BatchOrder, LastBatches, TrainingOrder
from distillmatch.engine.stores import Rows
from distillmatch.methods import Schedule, Training

COUNTS, BATCHES = st.integers(1, 40), st.integers(1, 12)


def drawing(count: int) -> Callable[[int], Rows]:
    return lambda number: np.random.default_rng(number).permutation(count)


def cut(rows: Rows, sizes: tuple[int, ...]) -> list[list[int]]:
    ends = np.cumsum(sizes)
    assert ends[-1] == len(rows)
    return [rows[end - size : end].tolist() for size, end in zip(sizes, ends, strict=True)]


def chunks(rows: list[int], size: int) -> list[list[int]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


@given(COUNTS, BATCHES, st.integers(0, 3))
def test_a_filled_pass_ends_with_its_first_images_again(
    count: int, batch: int, number: int
) -> None:
    order, draw = BatchOrder(count, batch), drawing(count)
    once = draw(number).tolist()
    expected = chunks(once, batch)
    while len(expected[-1]) < batch:
        expected[-1].append(once[(len(expected[-1]) + batch * (len(expected) - 1)) % count])
    assert order.steps == len(expected)
    assert cut(*order.in_pass(number, range(order.steps), draw)) == expected


@given(COUNTS, BATCHES, st.integers(0, 20), st.integers(1, 9))
def test_filled_batches_of_unlabeled_images_run_on_from_pass_to_pass(
    count: int, batch: int, first: int, steps: int
) -> None:
    order, draw = BatchOrder(count, batch), drawing(count)
    passes = chain.from_iterable(draw(number).tolist() for number in range(30 * batch))
    endless = [image for image, _ in zip(passes, range((first + steps) * batch), strict=False)]
    taken = cut(*order.going_round(range(first, first + steps), draw))
    assert taken == chunks(endless, batch)[first:]


@given(COUNTS, BATCHES, st.integers(0, 3))
def test_a_pass_in_short_batches_takes_every_image_once(
    count: int, batch: int, number: int
) -> None:
    order, draw = BatchOrder(count, batch, "short"), drawing(count)
    expected = chunks(draw(number).tolist(), batch)
    if count == 1:
        expected = [[0] * batch]
    if len(expected) > 1 and len(expected[-1]) == 1:
        expected[-2:] = [expected[-2] + expected[-1]]
    assert order.steps == len(expected)
    assert cut(*order.in_pass(number, range(order.steps), draw)) == expected
    in_training = range(number * order.steps, (number + 1) * order.steps)
    assert cut(*order.going_round(in_training, draw)) == expected


@pytest.mark.parametrize("last", get_args(LastBatches))
@given(COUNTS, BATCHES, st.integers(0, 12), st.integers(1, 9), st.data())
def test_steps_take_the_same_however_they_are_asked_for(
    last: LastBatches, count: int, batch: int, first: int, steps: int, data: st.DataObject
) -> None:
    order, draw = BatchOrder(count, batch, last), drawing(count)
    middle = data.draw(st.integers(first, first + steps))
    whole, early, late = (
        range(first, first + steps),
        range(first, middle),
        range(middle, first + steps),
    )
    pieces = [cut(*order.going_round(part, draw)) for part in (early, late) if part]
    rows, sizes = order.going_round(whole, draw)
    assert list(chain.from_iterable(pieces)) == cut(rows, sizes)
    assert order.images(whole) == len(rows) == sum(sizes)


def order_of(
    new: int, stored: int, batch: int, last: Any = "filled", share: float | None = None, **of: Any
) -> TrainingOrder:
    """Return the order of a training; stored images come after new ones, and three unlabeled."""
    training = Training(
        "classifier", nn.Linear(1, 1), lambda *_: torch.zeros(()), Schedule(4, 0.1), **of
    )
    config = RunConfig(seed=5, batch=batch, unlabeled_batch=2, coreset=9, stored_share=share)
    counts: Any = {"labeled": new + stored, "new": new, "coreset": stored, "unlabeled": 3}
    return TrainingOrder(training, 1, counts, batch, config, last)


def slots(new: int, stored: int) -> Rows:
    """Return labels of two new and, of stored images, two old classes."""
    return np.concatenate([np.arange(new) % 2 + 2, np.arange(stored) % 2])


def batches_of(
    order: TrainingOrder, number: int, cuts: tuple[int, ...] = (), labels: Any = None
) -> list[list[int]]:
    """Return the labeled images that the steps of an epoch take, asked for in parts."""
    parts = [range(start, stop) for start, stop in pairwise([0, *cuts, order.steps])]
    return list(chain.from_iterable(cut(*order.labeled_rows(number, p, labels)) for p in parts))


@settings(max_examples=150, deadline=None)
@given(
    new=st.integers(1, 25),
    stored=st.integers(1, 12),
    batch=st.integers(2, 12),
    share=st.floats(0.01, 1.0),
    last=st.sampled_from(get_args(LastBatches)),
)
def test_every_batch_has_its_share_of_stored_images_and_a_pass_every_new_one(
    new: int, stored: int, batch: int, share: float, last: Any
) -> None:
    order = order_of(new, stored, batch, last, share)
    in_batch = min(max(round(share * batch), 1), batch - 1)
    went_round: list[int] = []
    for number in range(4):
        passed: list[int] = []
        for rows in batches_of(order, number):
            of_new, of_stored = [r for r in rows if r < new], [r for r in rows if r >= new]
            assert len(of_stored) == in_batch
            if last == "filled":
                assert len(rows) == batch
            passed += of_new
            went_round += of_stored
        assert set(passed) == set(range(new))
        if last == "short" and new > 1:
            assert sorted(passed) == list(range(new)), "each new image once"
    everything = list(range(new, new + stored))
    for start in range(0, len(went_round) - stored + 1, stored):
        assert sorted(went_round[start : start + stored]) == everything, "each once a round"


@settings(max_examples=60, deadline=None)
@given(new=st.integers(2, 25), stored=st.integers(0, 12), per_class=st.integers(1, 4))
def test_a_support_set_has_as_many_images_of_each_class(
    new: int, stored: int, per_class: int
) -> None:
    labels = slots(new, stored)
    present = np.unique(labels).tolist()
    size = per_class * len(present)
    order = order_of(new, stored, size, per_class=per_class, epoch_of="unlabeled")
    for number in range(3):
        taken = batches_of(order, number, labels=labels)
        assert len(taken) == 2, "three unlabeled images, by twos"
        for rows in taken:
            assert labels[rows].tolist() == [c for c in present for _ in range(per_class)]
            for label in present:
                of_class = {row for row in rows if labels[row] == label}
                assert len(of_class) == min(per_class, int((labels == label).sum())), "none twice"
        assert taken == batches_of(order, number, (1,), labels), "in parts"


@pytest.mark.parametrize(("last", "steps"), [("short", 1), ("filled", 2)])
def test_an_epoch_over_the_unlabeled_images_has_each_of_them_while_labeled_ones_go_round(
    last: LastBatches, steps: int
) -> None:
    """Of three by twos, the last one joins a short batch."""
    order = order_of(5, 0, 2, last, epoch_of="unlabeled")
    assert order.steps == steps
    went_round: list[int] = []
    for number in range(8):
        rows, _ = order.unlabeled_rows(number, range(steps))
        assert set(rows.tolist()) == {0, 1, 2}
        went_round += chain.from_iterable(batches_of(order, number))
    assert sorted(went_round[:5]) == sorted(went_round[5:10]) == list(range(5))
    without = order_of(5, 0, 2, last, epoch_of="unlabeled", unlabeled=False)
    assert without.steps == order_of(5, 0, 2, last).steps, "there is no unlabeled image to count"


def test_the_share_of_a_training_holds_unless_the_run_has_one() -> None:
    for share, in_batch in ((None, 4), (0.25, 2)):
        rows = batches_of(order_of(23, 9, 8, share=share, stored_share=0.5), 0)
        assert {sum(row >= 23 for row in batch) for batch in rows} == {in_batch}
