"""Find camera images, read each once, and let the learner judge them."""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distillmatch.errors import LearnerError
from distillmatch.learner import ContinualLearner
from distillmatch.learner.environment import paths_at, roots_of
from distillmatch.learner.labels import UNKNOWN
from distillmatch.sources.images import ImageFile
from distillmatch.sources.walk import shown
from distillmatch.terminal import show_progress

WHAT = "camera images"
BATCH = 256
_digest = partial(hashlib.blake2b, digest_size=8)
_GRID = 8
"""Squares along each side of an image whose mean colors describe it."""


@dataclass(frozen=True)
class Shot:
    """A camera image: its file, its name for people, and a hash of its content."""

    path: str
    name: str
    digest: str
    stamp: tuple[int, int]

    def refuse_change(self) -> None:
        """Raise if the file was replaced after the learner saw it."""
        try:
            same = _stamp(self.path) == self.stamp
        except OSError as error:
            raise LearnerError(f"{shown(self.path)}: {error.strerror or error}") from None
        if not same:
            raise LearnerError(f"{shown(self.path)}: this file has changed; start the review again")


class Judged(NamedTuple):
    """What a learner says of images, a row for each.

    Images that look alike have `descriptors` that are near. All images are `familiar` to a learner
    that cannot reject.
    """

    probabilities: NDArray[np.float32]
    familiar: NDArray[np.bool_]
    descriptors: NDArray[np.float32]


class Camera(NamedTuple):
    """All distinct camera images, judged.

    So many `copies` have the same content as another file. `problems` has a sentence for each file
    that is no image.
    """

    shots: list[Shot]
    judged: Judged
    copies: int
    problems: list[str]


def look(learner: ContinualLearner, places: Sequence[Path], out: Path) -> Camera:
    """Judge the images at some places, except those in `out`, and show progress."""
    files, problems = find_files(places, out)
    distinct: dict[str, Shot] = {}
    copies = 0
    with show_progress(f"reading the {WHAT}", len(files)) as progress:
        for number, (path, name) in enumerate(files.items(), 1):
            progress(number)
            try:
                stamp = _stamp(path)
                with Path(path).open("rb") as file:
                    content = hashlib.file_digest(file, _digest)
            except OSError as error:
                problems.append(f"{shown(path)}: {error.strerror or error}")
                continue
            shot = Shot(path, name, content.hexdigest(), stamp)
            copies += distinct.setdefault(shot.digest, shot) is not shot
    shots: list[Shot] = []
    judged: list[Judged] = []
    items = [ImageFile.at(shot.path) for shot in distinct.values()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each problem is listed
        rows = learner.reader_for(items).results(items, WHAT)
        results = zip(distinct.values(), rows, strict=True)
        while batch := list(islice(results, BATCH)):
            good = [(shot, row) for shot, row in batch if not isinstance(row, str)]
            problems += [f"{shown(shot.path)}: {r}" for shot, r in batch if isinstance(r, str)]
            if good:
                shots += [shot for shot, _ in good]
                judged.append(judge(learner, np.stack([row for _, row in good])))
    if not shots:
        reason = f" ({problems[0]})" if problems else ""
        raise LearnerError(f"{shown(places[0])}: expected images there, found none{reason}")
    whole = Judged(*(np.concatenate(parts) for parts in zip(*judged, strict=True)))
    return Camera(shots, whole, copies, problems)


def find_files(places: Sequence[Path], out: Path) -> tuple[dict[str, str], list[str]]:
    """Return each file at some places once, with its name for people, and the problems of others.

    Files in `out` are left out, and so are links that lead out of the places.
    """
    found: dict[str, str] = {}
    problems: list[str] = []
    labels = out.resolve()
    roots = {root for place in places for root in roots_of(place)}
    for place in places:
        if place.resolve().is_relative_to(labels):
            raise LearnerError(
                f"{shown(out)}: labels must lie apart from the camera images in {shown(place)}"
            )
        root = place.expanduser() if place.expanduser().is_dir() else None
        for path in paths_at(place).files:
            real = Path(path).resolve()
            if real.is_relative_to(labels):
                continue
            if roots.isdisjoint((real, *real.parents)):
                problems.append(f"{shown(path)}: a link that leads out of the places given")
                continue
            name = Path(path).relative_to(root) if root else Path(path).name
            found.setdefault(str(real), shown(name))
    return found, problems


def judge(learner: ContinualLearner, rows: NDArray[np.generic]) -> Judged:
    """Return the learner's judgment of images that its reader has read."""
    labels, probabilities = learner.answer_rows(rows, reject=learner.can_reject)
    return Judged(probabilities, labels != UNKNOWN, describe(rows))


def describe(rows: NDArray[np.generic]) -> NDArray[np.float32]:
    """Describe images by the direction of their features, or pixels by a grid of mean colors."""
    if rows.ndim == 2:
        features = rows.astype(np.float32)
        return np.asarray(features / np.maximum(np.linalg.norm(features, axis=1)[:, None], 1e-6))
    cell = rows.shape[1] // _GRID
    cut = rows[:, : cell * _GRID, : cell * _GRID].astype(np.float32)
    cells = cut.reshape(len(rows), _GRID, cell, _GRID, cell, 3).mean(axis=(2, 4))
    return np.asarray(cells.reshape(len(rows), -1) / 255)


def _stamp(path: str) -> tuple[int, int]:
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns
