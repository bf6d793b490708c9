"""Which images the steps of a training take, where stored images have a share of every batch."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from distillmatch.config import RunConfig
from distillmatch.engine import Placement
from distillmatch.engine.data import TaskData
from distillmatch.methods import Schedule, TaskInfo, Training
from distillmatch.views import Normalization

CPU = Placement(torch.device("cpu"), torch.float32)
NEUTRAL = Normalization(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
TASK = TaskInfo(number=1, sizes=(2, 2), last=False, coreset=True)


def training(**options: Any) -> Training:
    return Training(
        "classifier", nn.Linear(1, 1), lambda *_: torch.zeros(()), Schedule(4, 0.1), **options
    )


def data_of(new: int, stored: int, batch: int, **options: Any) -> TaskData:
    """Images without content: the first labels are of the new classes, then come stored ones."""
    images = np.zeros((new + stored + 3, 4, 4, 3), np.uint8)
    labels = np.arange(new + stored) % 2
    return TaskData(
        TASK,
        (images[:new], labels[:new] + 2),
        (images[new : new + stored], labels[new:]),
        images[new + stored :],
        RunConfig(seed=5, batch=batch, unlabeled_batch=2, coreset=9, **options),
        normalization=NEUTRAL,
        placement=CPU,
    )


def batches_of(
    data: TaskData, number: int, cuts: tuple[int, ...] = (), **options: Any
) -> list[list[int]]:
    """Return the rows that the steps of an epoch take, asked for in parts."""
    one = training(**options)
    steps, taken = data.steps(one), []
    for start, stop in pairwise([0, *cuts, steps]):
        draft = data.draft(one, number, range(start, stop))
        ends = np.cumsum([0, *draft.sizes])
        taken += [draft.labeled[a:b].tolist() for a, b in pairwise(ends)]
    return taken


@settings(max_examples=150, deadline=None)
@given(
    new=st.integers(1, 25),
    stored=st.integers(1, 12),
    batch=st.integers(2, 12),
    share=st.floats(0.01, 1.0),
    last=st.sampled_from(["filled", "short"]),
)
def test_every_batch_has_its_share_of_stored_images_and_a_pass_every_new_one(
    new: int, stored: int, batch: int, share: float, last: Any
) -> None:
    recipe = "paper" if last == "short" else "as-written"
    data = data_of(new, stored, batch, stored_share=share, recipe=recipe)
    in_batch = min(max(round(share * batch), 1), batch - 1)
    went_round: list[int] = []
    for number in range(4):
        passed: list[int] = []
        for rows in batches_of(data, number):
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
@given(
    new=st.integers(2, 25),
    stored=st.integers(0, 12),
    per_class=st.integers(1, 4),
)
def test_a_support_set_has_as_many_images_of_each_class(
    new: int, stored: int, per_class: int
) -> None:
    data = data_of(new, stored, 8, recipe="as-written")
    options: Any = {"per_class": per_class, "epoch_of": "unlabeled"}
    labels = data.labels("labeled").tolist()
    present = sorted(set(labels))
    for number in range(3):
        taken = batches_of(data, number, **options)
        assert len(taken) == 2, "three unlabeled images, by twos"
        for rows in taken:
            assert [labels[row] for row in rows] == [c for c in present for _ in range(per_class)]
            for label in present:
                of_class = {row for row in rows if labels[row] == label}
                assert len(of_class) == min(per_class, labels.count(label)), "none twice"
        assert taken == batches_of(data, number, (1,), **options), "in parts"


@pytest.mark.parametrize(("recipe", "steps"), [("paper", 1), ("as-written", 2)])
def test_an_epoch_over_the_unlabeled_images_has_each_of_them_while_labeled_ones_go_round(
    recipe: str, steps: int
) -> None:
    """Of three by twos, the last one joins a short batch."""
    data, one = data_of(5, 0, 2, recipe=recipe), training(epoch_of="unlabeled")
    assert data.steps(one) == steps
    went_round: list[int] = []
    for number in range(8):
        draft = data.draft(one, number, range(steps))
        assert draft.unlabeled is not None
        assert set(draft.unlabeled.tolist()) == {0, 1, 2}
        went_round += draft.labeled.tolist()
    assert sorted(went_round[:5]) == sorted(went_round[5:10]) == list(range(5))
    without = training(epoch_of="unlabeled", unlabeled=False)
    assert data.steps(without) == data.steps(training()), "there is no unlabeled image to count"


def test_without_a_share_or_stored_images_all_labeled_images_are_alike() -> None:
    for stored, options in ((9, {}), (0, {"stored_share": 0.5})):
        data = data_of(23, stored, 8, **options)
        rows = [row for batch in batches_of(data, 0) for row in batch]
        assert sorted(rows) == list(range(23 + stored))


def test_the_share_of_a_training_holds_unless_the_run_has_one() -> None:
    for share, in_batch in ((None, 4), (0.25, 2)):
        rows = batches_of(data_of(23, 9, 8, stored_share=share), 0, stored_share=0.5)
        assert {sum(row >= 23 for row in batch) for batch in rows} == {in_batch}
