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


@dataclass(frozen=True)
class _Failure:
    error: Trouble
    reason: str


Result = NDArray[Any] | _Failure
"""What the learner's reader makes of an image, or why there is nothing."""


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
        waiting: deque[tuple[list[str], Future[list[Result]]]] = deque()
        for batch in _batches(names):
            if batch:
                waiting.append((batch, reading.submit(_read, batch, reader)))
            while len(waiting) > (AHEAD if batch else 0):
                done, future = waiting.popleft()
                yield list(_predict(learner, done, future.result(), reject, accept))


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
    learner: "ContinualLearner",
    names: list[str],
    results: list[Result],
    reject: bool,
    accept: float | None,
) -> Iterator[Prediction]:
    rows = [result for result in results if not isinstance(result, _Failure)]
    labels, best = iter(()), iter(())
    if rows:
        answers, probabilities = learner.answer_rows(np.stack(rows), reject, accept)
        labels, best = iter(answers), iter(probabilities.max(axis=1))
    for name, result in zip(names, results, strict=True):
        if isinstance(result, _Failure):
            yield Prediction(name, error=result.error, reason=result.reason)
        else:
            yield Prediction(name, str(next(labels)), float(next(best)))


def _read(names: list[str], reader: Reader) -> list[Result]:
    """Read what can be read of some files."""
    checked = [_checked(name) for name in names]
    found = iter(list(reader.results([file for file in checked if isinstance(file, ImageFile)])))
    results: list[Result] = []
    for file in checked:
        if isinstance(file, _Failure):
            results.append(file)
            continue
        result = next(found)
        results.append(_Failure("unreadable", result) if isinstance(result, str) else result)
    return results


def _checked(name: str) -> ImageFile | _Failure:
    """Return a file that can be opened, or why none can."""
    path = Path(name)
    try:
        if is_special(path):
            return _Failure("unreadable", NO_FILE)
        with path.open("rb"):
            return ImageFile.at(name)
    except FileNotFoundError:
        return _Failure("missing", "there is no such file")
    except IsADirectoryError:
        return _Failure("folder", "a folder, not an image")
    except PermissionError:
        return _Failure("forbidden", "this file may not be read")
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        return _Failure("unreadable", str(getattr(error, "strerror", None) or error))
