"""Camera images: found, read once, and judged by the learner."""

import hashlib
import io
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distillmatch.errors import LearnerError
from distillmatch.learner import ContinualLearner
from distillmatch.learner.labels import UNKNOWN
from distillmatch.learner.places import paths_at
from distillmatch.sources.images import BadImageError, decode_image
from distillmatch.sources.walk import shown
from distillmatch.terminal import show_progress

BATCH = 256
LARGEST_FILE = 256 * 2**20
"""Bytes of a file that may be an image; a film among photographs is not read."""
_GRID = 8
"""Squares along each side of an image whose mean colors describe it."""


@dataclass(frozen=True)
class Shot:
    """A camera image: its file, what people call it, and a hash of its content."""

    path: str
    name: str
    digest: str
    stamp: tuple[int, int]

    def refuse_change(self) -> None:
        """Refuse a file that was replaced since the learner saw it."""
        try:
            same = _stamp(self.path) == self.stamp
        except OSError as error:
            raise LearnerError(f"{shown(self.path)}: {error.strerror or error}") from None
        if not same:
            raise LearnerError(f"{shown(self.path)}: this file has changed; start the review again")


class Judged(NamedTuple):
    """What a learner says of images.

    Attributes:
        probabilities: of each class, a row per image.
        familiar: whether each looks like a learned class, or None if the learner cannot tell.
        familiarity: the score behind that, if the learner gives one.
    """

    probabilities: NDArray[np.float32]
    familiar: NDArray[np.bool_] | None
    familiarity: NDArray[np.float32] | None


class Camera(NamedTuple):
    """All distinct camera images, judged.

    Attributes:
        shots: the images.
        judged: what the learner says of them.
        descriptors: a row per image; images that look alike have rows that are near.
        copies: files left out because another has the same content.
        problems: a sentence for each file that is no image.
    """

    shots: list[Shot]
    judged: Judged
    descriptors: NDArray[np.float32]
    copies: int
    problems: list[str]


def judge(learner: ContinualLearner, images: NDArray[np.uint8]) -> Judged:
    """Return what a learner says of decoded images."""
    probabilities = learner.predict_proba(images)
    try:
        familiar = learner.predict(images, reject=True) != UNKNOWN
    except LearnerError:  # it has no threshold
        familiar = None
    return Judged(probabilities, familiar, None)


def look(learner: ContinualLearner, places: Sequence[Path], out: Path) -> Camera:
    """Judge the images at some places, with progress in the terminal; what lies in `out` is not."""
    files = find_files(places, out)
    shots: dict[str, Shot] = {}
    judged: list[Judged] = []
    descriptors: list[NDArray[np.float32]] = []
    problems: list[str] = []
    copies = 0
    with show_progress("looking at the camera images", len(files)) as progress:
        for done, batch in _batches(files, learner.image_size_):
            images = []
            for shot, image in batch:
                if isinstance(image, str):
                    problems.append(f"{shown(shot.path)}: {image}")
                elif shots.setdefault(shot.digest, shot) is shot:
                    images.append(image)
                else:
                    copies += 1
            if images:
                judged.append(judge(learner, np.stack(images)))
                descriptors.append(describe(np.stack(images)))
            progress(done)
    if not shots:
        raise LearnerError(f"{shown(places[0])}: expected images there, found none")
    return Camera(
        list(shots.values()), _joined(judged), np.concatenate(descriptors), copies, problems
    )


def find_files(places: Sequence[Path], out: Path) -> list[tuple[str, str]]:
    """Return each file at some places once, with a name for people; those in `out` not."""
    found: dict[str, str] = {}
    labels = out.resolve()
    for place in places:
        if place.resolve().is_relative_to(labels):
            raise LearnerError(
                f"{shown(out)}: labels must lie apart from the camera images in {shown(place)}"
            )
        root = place.expanduser() if place.expanduser().is_dir() else None
        for path in paths_at(place).files:
            real = os.path.realpath(path)
            if not Path(real).is_relative_to(labels):
                name = Path(path).relative_to(root) if root else Path(path).name
                found.setdefault(real, shown(name))
    return list(found.items())


def describe(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Describe images by the mean colors of a grid of squares."""
    cell = images.shape[1] // _GRID
    cut = images[:, : cell * _GRID, : cell * _GRID].astype(np.float32)
    cells = cut.reshape(len(images), _GRID, cell, _GRID, cell, 3).mean(axis=(2, 4))
    rows: NDArray[np.float32] = cells.reshape(len(images), -1) / 255
    return rows


def read_shot(path: str, name: str, side: int) -> tuple[Shot, NDArray[np.uint8] | str]:
    """Return an image with its pixels, or the reason why there are none."""
    nothing = Shot(path, name, "", (0, 0))
    try:
        stamp = _stamp(path)
        if stamp[0] > LARGEST_FILE:
            return nothing, "too large for an image"
        content = Path(path).read_bytes()
        image = decode_image(io.BytesIO(content), side)
    except BadImageError as error:
        return nothing, str(error)
    except OSError as error:
        return nothing, error.strerror or str(error)
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    return Shot(path, name, digest, stamp), image


def _batches(
    files: Sequence[tuple[str, str]], side: int
) -> Iterator[tuple[int, list[tuple[Shot, NDArray[np.uint8] | str]]]]:
    """Yield how many files are read, and the images of the last ones."""
    with warnings.catch_warnings(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        warnings.simplefilter("ignore")  # what is wrong with a file is said of it
        for start in range(0, len(files), BATCH):
            some = files[start : start + BATCH]
            read = list(pool.map(lambda file: read_shot(file[0], file[1], side), some))
            yield start + len(some), read


def _joined(judged: Sequence[Judged]) -> Judged:
    """Return as one what was said of batches."""
    known = [one.familiar for one in judged if one.familiar is not None]
    scores = [one.familiarity for one in judged if one.familiarity is not None]
    return Judged(
        np.concatenate([one.probabilities for one in judged]),
        np.concatenate(known) if known else None,
        np.concatenate(scores) if scores else None,
    )


def _stamp(path: str) -> tuple[int, int]:
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns
