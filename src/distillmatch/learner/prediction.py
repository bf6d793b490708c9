"""Predicting files, some at a time."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from distillmatch.learner.inputs import file_at
from distillmatch.sources.images import ImageFile
from distillmatch.terminal import without_progress

if TYPE_CHECKING:
    from distillmatch.learner.estimator import ContinualLearner

BATCH = 256

Trouble = Literal["missing", "forbidden", "folder", "unreadable"]


@dataclass(frozen=True)
class Prediction:
    """What a learner says of one file: a label with its probability, or why there is none."""

    name: str
    label: str | None = None
    probability: float | None = None
    error: Trouble | None = None
    reason: str = ""


def predict_files(
    learner: "ContinualLearner",
    names: Iterable[str | None],
    reject: bool = False,
    accept: float | None = None,
) -> Iterator[list[Prediction]]:
    """Return a prediction for every name, in order, some at a time.

    Where names come slowly, None among them says that there is none just now: all that came before
    are then answered.
    """
    if reject:
        learner.predict([], reject=True, accept=accept)  # what cannot be done is said at once
    return (_predict(learner, batch, reject, accept) for batch in _batches(names))


def _batches(names: Iterable[str | None]) -> Iterator[list[str]]:
    """Yield names that are predicted together."""
    batch: list[str] = []
    for name in chain(names, [None]):
        if name is not None:
            batch.append(name)
        if batch and (name is None or len(batch) == BATCH):
            yield batch
            batch = []


def _predict(
    learner: "ContinualLearner", names: list[str], reject: bool, accept: float | None
) -> list[Prediction]:
    found = [_trouble_with(name) or Prediction(name) for name in names]
    places = [place for place, one in enumerate(found) if one.error is None]
    rows: list[NDArray[Any]] = []
    answered: list[int] = []
    with warnings.catch_warnings(), without_progress():
        warnings.simplefilter("ignore")  # what is wrong with a file is in its row
        results = learner.reader_for([]).results([ImageFile.at(names[place]) for place in places])
        for place, result in zip(places, results, strict=True):
            if isinstance(result, str):
                found[place] = Prediction(names[place], error="unreadable", reason=result)
            else:
                answered.append(place)
                rows.append(result)
    if rows:
        labels, probabilities = learner.answer_rows(np.stack(rows), reject, accept)
        best = probabilities.max(axis=1).tolist()
        for place, label, probability in zip(answered, labels.tolist(), best, strict=True):
            found[place] = Prediction(names[place], str(label), probability)
    return found


def _trouble_with(name: str) -> Prediction | None:
    """Return what is to be said of a file that cannot be opened."""
    try:
        with file_at(Path(name)).open():
            return None
    except FileNotFoundError:
        return Prediction(name, error="missing", reason="there is no such file")
    except IsADirectoryError:
        return Prediction(name, error="folder", reason="a folder, not an image")
    except PermissionError:
        return Prediction(name, error="forbidden", reason="this file may not be read")
    except OSError as error:
        return Prediction(name, error="unreadable", reason=error.strerror or str(error))
