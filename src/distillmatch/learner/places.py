"""Where unlabeled images lie: files, folders, patterns such as `camera/**/*.jpg`, and videos."""

import glob
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from distillmatch.errors import LearnerError
from distillmatch.learner.inputs import file_at
from distillmatch.learner.video import Video, VideoFrame, frames_of, has_reader, is_video
from distillmatch.sources.images import ImageFile
from distillmatch.sources.walk import list_files, shown

Place = str | Path | Video
WHAT = "unlabeled images"


class Paths(NamedTuple):
    """The files at a place, those that are no real files, and how many hidden ones were ignored."""

    files: list[str]
    special: list[str]
    hidden: int


def images_at(place: Place) -> tuple[list[ImageFile | VideoFrame], int]:
    """Return the images at a place, none of them decoded, and how many hidden files there were.

    What lies in a folder and is no image is among them: reading it says what is wrong with it.
    """
    if isinstance(place, Video):
        return [*frames_of(place)], 0
    path = Path(place).expanduser()
    if path.is_file() and is_video(path):
        return [*frames_of(Video(path))], 0
    paths = paths_at(place)
    items: list[ImageFile | VideoFrame] = []
    for name in paths.files:
        items += _frames_among(Path(name)) if is_video(Path(name)) else [file_at(Path(name))]
    return [*items, *(file_at(Path(name)) for name in paths.special)], paths.hidden


def paths_at(place: Place) -> Paths:
    """Return what a person's file, folder, pattern or video stands for; refuse nothing at all."""
    if isinstance(place, Video):
        return Paths([str(place.path)], [], 0)
    path = Path(place).expanduser()
    if path.is_dir():
        return _below(path)
    if path.exists():
        return Paths([str(path)], [], 0)
    if not glob.has_magic(str(path)):
        raise LearnerError(f"{shown(path)}: expected {WHAT} there, found nothing")
    matches = sorted(glob.iglob(str(path), recursive=True))  # noqa: PTH207  it may be absolute
    if not matches:
        raise LearnerError(f"{shown(path)}: expected {WHAT} that fit this pattern, found none")
    found, hidden = Paths([], [], 0), 0
    for match in matches:
        if Path(match).is_dir():
            below = _below(Path(match))
            found.files.extend(below.files)
            found.special.extend(below.special)
            hidden += below.hidden
        else:
            found.files.append(match)
    # A pattern may find a folder as well as the files in it.
    return Paths([*dict.fromkeys(found.files)], [*dict.fromkeys(found.special)], hidden)


def roots_of(place: Place) -> list[Path]:
    """Return the file or folder at a place, or the files that a pattern stands for."""
    path = Path(place.path if isinstance(place, Video) else place).expanduser()
    if path.exists() or not glob.has_magic(str(path)):
        return [path.resolve()]
    return [Path(file).resolve() for file in paths_at(place).files]


def _below(folder: Path) -> Paths:
    listing = list_files(folder)
    if listing.unlisted:
        raise LearnerError(listing.unlisted[0])
    return Paths(listing.files, listing.special, listing.hidden)


def _frames_among(path: Path) -> list[ImageFile | VideoFrame]:
    """Return the frames of a video that was found, or something that cannot be read."""
    problem = "a video, which is read with: pip install 'distillmatch[video]'"
    if has_reader():
        try:
            return [*frames_of(Video(path))]
        except LearnerError as error:
            problem = str(error)
    return [ImageFile(shown(path), partial(_refuse, problem))]


def _refuse(problem: str) -> BinaryIO:
    raise OSError(problem)
