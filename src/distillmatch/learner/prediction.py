"""Predicting files: decoded by a few threads while the network looks at those before."""

import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from distillmatch.learner.inputs import NO_FILE, is_special
from distillmatch.sources.images import BadImageError, decode_image

if TYPE_CHECKING:
    from distillmatch.learner.estimator import ContinualLearner

BATCH = 256
AHEAD = 2
"""Batches that are decoded before they are asked for."""

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


def predict_files(
    learner: "ContinualLearner", names: Iterable[str | None], reject: bool = False
) -> Iterator[list[Prediction]]:
    """Return a prediction for every name, in order, some at a time.

    Where names come slowly, None among them says that there is none just now: all that came before
    are then answered.
    """
    if reject:
        learner.predict([], reject=True)  # a learner that cannot tell strangers says so at once
    return _predictions(learner, names, reject)


def _predictions(
    learner: "ContinualLearner", names: Iterable[str | None], reject: bool
) -> Iterator[list[Prediction]]:
    side = learner.image_size_
    with (
        warnings.catch_warnings(),
        ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool,
    ):
        warnings.simplefilter("ignore")  # what is wrong with a file is in its row
        waiting: deque[tuple[list[str], list[Future[NDArray[np.uint8] | _Failure]]]] = deque()
        for batch in _batches(names):
            if batch:
                waiting.append((batch, [pool.submit(_decode, name, side) for name in batch]))
            while len(waiting) > (AHEAD if batch else 0):
                yield list(_predict(learner, *waiting.popleft(), reject))


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
    decoding: list["Future[NDArray[np.uint8] | _Failure]"],
    reject: bool,
) -> Iterator[Prediction]:
    decoded = [future.result() for future in decoding]
    images = [image for image in decoded if not isinstance(image, _Failure)]
    found = _labels(learner, np.stack(images), reject) if images else iter(())
    for name, image in zip(names, decoded, strict=True):
        if isinstance(image, _Failure):
            yield Prediction(name, error=image.error, reason=image.reason)
        else:
            label, probability = next(found)
            yield Prediction(name, label, probability)


def _labels(
    learner: "ContinualLearner", images: NDArray[np.uint8], reject: bool
) -> Iterator[tuple[str, float]]:
    probabilities = learner.predict_proba(images)
    best = probabilities.argmax(axis=1)
    labels = learner.predict(images, reject=True) if reject else learner.classes_[best]
    for label, row, column in zip(labels, probabilities, best, strict=True):
        yield str(label), float(row[column])


def _decode(name: str, side: int) -> NDArray[np.uint8] | _Failure:
    path = Path(name)
    try:
        if is_special(path):
            raise BadImageError(NO_FILE)
        with path.open("rb") as file:
            return decode_image(file, side)
    except BadImageError as error:
        return _Failure("unreadable", str(error))
    except FileNotFoundError:
        return _Failure("missing", "there is no such file")
    except IsADirectoryError:
        return _Failure("folder", "a folder, not an image")
    except PermissionError:
        return _Failure("forbidden", "this file may not be read")
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        return _Failure("unreadable", str(getattr(error, "strerror", None) or error))
