"""Which images the steps of a training take, beside passes that are cut by hand."""

from collections.abc import Callable
from itertools import chain
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distillmatch.engine.batch_order import BatchOrder, LastBatches
from distillmatch.engine.stores import Rows

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
