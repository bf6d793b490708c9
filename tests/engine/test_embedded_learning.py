"""Learning on the embedded source, on the CPU: enough is learned, and as much is forgotten."""

from itertools import islice
from typing import Any

import pytest

from distillmatch.config import RunConfig
from distillmatch.engine import Engine, TaskOutcome
from distillmatch.sources import Dataset, load_source
from distillmatch.streams import build_stream


@pytest.fixture(scope="module")
def shapes() -> Dataset:
    return load_source(RunConfig(source="shapes", image_size=16))


def outcomes(shapes: Dataset, first: int, **options: Any) -> list[TaskOutcome]:
    """Learn the first so many tasks."""
    config = RunConfig(network="wrn-10-1", device="cpu", **options)
    engine = Engine(config, shapes, build_stream(shapes, config))
    return list(islice(engine.run(), first))


def accuracy(outcome: TaskOutcome, classes: int) -> float:
    """Percent right of the test images of the first classes, predicting among all seen."""
    asked = outcome.labels < classes
    guesses = outcome.logits[asked, : outcome.task.seen].argmax(axis=1)
    return float((guesses == outcome.labels[asked]).mean() * 100)


def test_all_classes_at_once_are_learned_to_75_to_95_percent(shapes: Dataset) -> None:
    """The offline bound on thirty labels a class: 82 % in about 35 seconds of one core."""
    (outcome,) = outcomes(shapes, 1, method="offline", tasks=1, epochs=40, batch=32)
    assert outcome.task.seen == 60
    assert 75 < accuracy(outcome, 60) < 95


def test_base_forgets_the_first_task_while_it_learns_the_second(shapes: Dataset) -> None:
    """Five classes at a time: from 86 % of the first five to none of them."""
    before, after = outcomes(shapes, 2, method="base", tasks=12, epochs=10, batch=16)
    assert accuracy(before, 5) > 60
    assert accuracy(after, 5) < accuracy(before, 5) - 30
    assert accuracy(after, 10) > 25, "the second task's classes are half of these"
