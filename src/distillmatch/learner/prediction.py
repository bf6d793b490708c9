"""Predicting files: read in a thread while those before are answered."""

import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from distillmatch.learner.inputs import NO_FILE, Reader, is_special
from distillmatch.sources.images import ImageFile
from distillmatch.terminal import without_progress

if TYPE_CHECKING:
    from distillmatch.learner.estimator import ContinualLearner

BATCH = 256
AHEAD = 2
"""Batches that are read before they are asked for."""

Trouble = Literal["missing", "forbidden", "folder", "unreadable"]


@dataclass(frozen=True)
class Prediction:
    """What a learner says of one file: a label with its probability, or why there is none."""

    name: str
    label: str | None = None
    probability: float | None = None
    error: Trouble | None = None
    reason: str = ""


_Read = tuple[list[NDArray[Any]], dict[int, Prediction]]
"""Rows of the files that can be read, and what is to be said of the others, by their place."""


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
    return _predictions(learner, names, reject, accept)


def _predictions(
    learner: "ContinualLearner",
    names: Iterable[str | None],
    reject: bool,
    accept: float | None,
) -> Iterator[list[Prediction]]:
    reader = learner.reader_for([])
    with warnings.catch_warnings(), without_progress(), ThreadPoolExecutor(1) as reading:
        warnings.simplefilter("ignore")  # what is wrong with a file is in its row
        waiting: deque[tuple[list[str], Future[_Read]]] = deque()
        for batch in _batches(names):
            if batch:
                waiting.append((batch, reading.submit(_read, batch, reader)))
            while len(waiting) > (AHEAD if batch else 0):
                done, future = waiting.popleft()
                yield _predict(learner, done, future.result(), reject, accept)


def _batches(names: Iterable[str | None]) -> Iterator[list[str]]:
    """Yield names that are predicted together; an empty list where those before must not wait."""
    batch: list[str] = []
    for name in chain(names, [None]):
        if name is not None:
            batch.append(name)
        if batch and (name is None or len(batch) == BATCH):
            yield batch
            batch = []
        if name is None:
            yield batch


def _predict(
    learner: "ContinualLearner", names: list[str], read: _Read, reject: bool, accept: float | None
) -> list[Prediction]:
    rows, failed = read
    answers: Iterator[tuple[Any, float]] = iter(())
    if rows:
        labels, probabilities = learner.answer_rows(np.stack(rows), reject, accept)
        answers = zip(labels.tolist(), probabilities.max(axis=1).tolist(), strict=True)
    found = []
    for place, name in enumerate(names):
        if place in failed:
            found.append(failed[place])
        else:
            label, probability = next(answers)
            found.append(Prediction(name, str(label), probability))
    return found


def _read(names: list[str], reader: Reader) -> _Read:
    troubles = ((place, _trouble_with(name)) for place, name in enumerate(names))
    failed = {place: trouble for place, trouble in troubles if trouble is not None}
    places = [place for place in range(len(names)) if place not in failed]
    rows: list[NDArray[Any]] = []
    results = reader.results([ImageFile.at(names[place]) for place in places])
    for place, result in zip(places, results, strict=True):
        if isinstance(result, str):
            failed[place] = Prediction(names[place], error="unreadable", reason=result)
        else:
            rows.append(result)
    return rows, failed


def _trouble_with(name: str) -> Prediction | None:
    """Return what is to be said of a file that cannot be opened."""
    path = Path(name)
    try:
        if is_special(path):
            return Prediction(name, error="unreadable", reason=NO_FILE)
        with path.open("rb"):
            return None
    except FileNotFoundError:
        return Prediction(name, error="missing", reason="there is no such file")
    except IsADirectoryError:
        return Prediction(name, error="folder", reason="a folder, not an image")
    except PermissionError:
        return Prediction(name, error="forbidden", reason="this file may not be read")
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = str(getattr(error, "strerror", None) or error)
        return Prediction(name, error="unreadable", reason=reason)
