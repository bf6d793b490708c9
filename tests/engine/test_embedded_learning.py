"""Learning on the embedded source, on the CPU: classes are learned, and forgotten by Base."""

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


@pytest.mark.parametrize("method", ["base", "offline"])
def test_base_forgets_the_first_five_classes_and_the_bound_does_not(
    shapes: Dataset, method: str
) -> None:
    given = {"tasks": 12, "epochs": 10, "batch": 16, "learning_rate": 0.1}
    before, after = outcomes(shapes, 2, method=method, **given)
    assert accuracy(before, 5) > 60
    if method == "base":
        assert accuracy(after, 5) < accuracy(before, 5) - 30
    else:
        assert accuracy(after, 5) > 60
    assert accuracy(after, 10) > 25, "the second task's classes are half of these"
