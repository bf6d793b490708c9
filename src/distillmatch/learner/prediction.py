"""Predicting files, some at a time."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from distillmatch.sources.images import ImageFile
from distillmatch.terminal import without_progress

if TYPE_CHECKING:
    from distillmatch.learner.estimator import ContinualLearner

BATCH = 256


@dataclass(frozen=True)
class Prediction:
    """What a learner says of one file: a label with its probability, or why there is none."""

    name: str
    label: str | None = None
    probability: float | None = None
    error: str | None = None
    """`missing`, `folder`, or `unreadable`; `reason` is for people."""
    reason: str = ""


def predict_files(
    learner: "ContinualLearner",
    names: Iterable[str],
    reject: bool = False,
    accept: float | None = None,
) -> Iterator[list[Prediction]]:
    """Return a prediction for every name, in order, in batches."""
    if reject:
        learner.predict([], reject=True, accept=accept)  # refuses at once what cannot be done
    left = iter(names)
    batches = iter(lambda: list(islice(left, BATCH)), [])
    return (_predict(learner, batch, reject, accept) for batch in batches)


def _predict(
    learner: "ContinualLearner", names: list[str], reject: bool, accept: float | None
) -> list[Prediction]:
    items = [ImageFile.at(name) for name in names]
    with warnings.catch_warnings(), without_progress():
        warnings.simplefilter("ignore")  # what is wrong with a file is in its row
        results = list(learner.reader_for([]).results(items))
    rows = [row for row in results if not isinstance(row, str)]
    answers: Iterator[tuple[str | int, float]] = iter(())
    if rows:
        labels, probabilities = learner.answer_rows(np.stack(rows), reject, accept)
        answers = zip(labels.tolist(), probabilities.max(axis=1).tolist(), strict=True)
    found = []
    for name, result in zip(names, results, strict=True):
        if isinstance(result, str):
            path = Path(name)
            error = "folder" if path.is_dir() else "unreadable" if path.exists() else "missing"
            found.append(Prediction(name, error=error, reason=result))
        else:
            label, probability = next(answers)
            found.append(Prediction(name, str(label), probability))
    return found
