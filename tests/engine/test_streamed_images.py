"""Images that do not fit on the device are fetched in parts, and nothing else changes."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import make_dataset
from small_runs import tiny

from distillmatch.config import RunConfig
from distillmatch.engine import Engine, Placement
from distillmatch.engine.data import TaskData
from distillmatch.engine.epochs import Epochs
from distillmatch.engine.stores import ResidentStore, StreamedStore, make_stores
from distillmatch.methods import TaskInfo, Training
from distillmatch.sources import Dataset, Part
from distillmatch.sources.dataset import MappedRows
from distillmatch.streams import build_stream

CPU = Placement.of(RunConfig(device="cpu"))


class Mean(NamedTuple):
    """The mean of an image's pixels."""

    mean: torch.Tensor


def mean_of(images: torch.Tensor, task: TaskInfo) -> Mean:
    return Mean(images.mean((1, 2, 3)))


@pytest.fixture
def mapped(tmp_path: Any) -> Dataset:
    """A data set whose images are mapped from a file."""
    made = make_dataset(classes=6, per_class=60, parents=3, noise=True)

    def part(name: str, given: Part) -> Part:
        given.images.tofile(tmp_path / name)
        return Part(
            np.memmap(tmp_path / name, np.uint8, "r", shape=given.images.shape), given.labels
        )

    return Dataset(
        "mapped", part("train", made.train), part("test", made.test), made.class_names, made.tree
    )


@pytest.mark.parametrize(
    "options",
    [
        {"method": "dm"},
        {"method": "worldmatch", "options": {"accept": "truth"}, "coreset": 12},
        {"method": "gd", "batch": 5, "unlabeled_batch": 12},
        {"method": "gd", "batch": 5, "unlabeled_batch": 12, "recipe": "as-written"},
        {"method": "gd", "batch": 8, "coreset": 12, "stored_share": 0.25},
        {"method": "offline-unlabeled"},
    ],
    ids=lambda options: str(options["method"]) + str(len(options)),
)
def test_fetched_images_are_learned_to_the_same_last_bit(
    mapped: Dataset, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small pieces, so that an epoch of a tiny task has several parts.
    monkeypatch.setattr(Placement, "scoring_batch", 8)
    config = tiny(**{"task_sizes": (2, 4), "label_fraction": 0.5, **options})
    parts = []
    outcomes, weights = [], []
    for limit in (None, 0):
        asked = config.replace(resident_bytes=limit)
        engine = Engine(asked, mapped, build_stream(mapped, asked))
        data = engine.task_data(0)
        training = engine.method.trainings(engine.task_info(0))[0]
        parts.append(len(data.parts(training)))
        outcomes.append(list(engine.run()))
        weights.append(engine.method.classifier.state_dict())
    assert parts[0] == 1 and parts[1] > 1
    for kept, fetched in zip(*outcomes, strict=True):
        assert kept.losses == fetched.losses
        assert kept.values == fetched.values
        assert np.array_equal(kept.logits, fetched.logits)
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name])


def store_of(limit: int, *parts: Any) -> Any:
    (store,) = make_stores([list(parts)], CPU, limit)
    return store


def test_both_stores_give_the_asked_images_in_the_asked_order() -> None:
    random = np.random.default_rng(0)
    pool = random.integers(0, 256, (3000, 4, 4, 3), np.uint8)
    rows = random.permutation(3000)[:2000]
    parts = MappedRows(pool, rows), pool[:0], pool[:7]
    expected = np.concatenate([pool[rows], pool[:7]])
    asked = random.integers(0, 2007, 1500)
    for limit, kind in ((10**6, ResidentStore), (0, StreamedStore)):
        store = store_of(limit, *parts)
        assert isinstance(store, kind) and len(store) == 2007 and store.side == 4
        given = store.deliver(store.fetch(asked))
        assert given.shape == (1500, 3, 4, 4)
        assert np.array_equal(given.permute(0, 2, 3, 1).numpy(), expected[asked])
        assert len(store.deliver(store.fetch(asked[:0]))) == 0


def test_no_more_is_fetched_ahead_than_a_few_parts(
    mapped: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(method="e2e", task_sizes=(6,), resident_bytes=0)
    engine = Engine(config, mapped, build_stream(mapped, config))
    data, training = engine.task_data(0), engine.method.trainings(engine.task_info(0))[0]
    fetched: list[tuple[int, int]] = []
    draft = data.draft

    def counted(of: Training, number: int, steps: range) -> Any:
        fetched.append((number, steps.start))
        return draft(of, number, steps)

    monkeypatch.setattr(data, "draft", counted)
    epochs = Epochs(data, training)
    taken = 0
    for _ in epochs.parts(0):
        taken += 1
        assert len(fetched) <= taken + 2
    assert fetched == sorted(set(fetched))
    assert taken == len(data.parts(training))
    next(epochs.parts(0))  # another order than expected is no harm


def test_a_pass_over_a_set_is_cut_and_put_together_again(mapped: Dataset) -> None:
    config = tiny(task_sizes=(6,))
    stream = build_stream(mapped, config)
    found = []
    for limit in (None, 0):
        asked = config.replace(resident_bytes=limit)
        data: TaskData = Engine(asked, mapped, stream).task_data(0)
        found.append(data.run(mean_of, "unlabeled", 2).mean)
    assert len(found[0]) == 2 * len(stream.tasks[0].unlabeled) > 128
    assert torch.equal(found[0], found[1])
