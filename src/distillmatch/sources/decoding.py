"""Decode many image files in threads, and resume after the process was killed."""

import json
import os
import shutil
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from distillmatch.errors import DiskError
from distillmatch.files import size_shown
from distillmatch.sources.images import ImageFile, decode_file, where
from distillmatch.terminal import show_progress

Result = NDArray[np.uint8] | str
"""An image, or the reason why there is none."""

VERSION = 2
IMAGES, JOURNAL = "images", "journal"
_PIECE_BYTES = 16 * 2**20
_BATCH = 32


@dataclass(frozen=True)
class Decoded:
    """The outcome of a list of files.

    Attributes:
        images: `images[i]` is the image of file `i`; it is undefined if the file is bad.
        good: the numbers of the files that are images.
        problems: a sentence for each of the others.
    """

    images: NDArray[np.uint8]
    good: NDArray[np.intp]
    problems: tuple[str, ...]


def piece_size(side: int) -> int:
    """Return how many images are decoded before the next are started, which bounds the memory."""
    return min(1024, max(16, _PIECE_BYTES // (side * side * 3)))


def worker_count() -> int:
    """Return how many threads decode images at once."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(16, max(2, cores or 1))


@contextmanager
def decode_in_pieces(
    files: Sequence[ImageFile | str], side: int, start: int = 0
) -> Iterator[Iterator[list[Result]]]:
    """Yield the results of all files, or paths, from number `start` on, piece after piece."""
    size = piece_size(side)

    def decode(batch: Sequence[ImageFile | str]) -> list[Result]:
        return [decode_file(file, side) for file in batch]

    def pieces() -> Iterator[list[Result]]:
        ahead: deque[list[Any]] = deque()
        for first in range(start, len(files), size):
            piece = files[first : first + size]
            batches = [piece[cut : cut + _BATCH] for cut in range(0, len(piece), _BATCH)]
            ahead.append([pool.submit(decode, batch) for batch in batches])
            if len(ahead) == 2:
                yield [result for batch in ahead.popleft() for result in batch.result()]
        for started in ahead:
            yield [result for batch in started for result in batch.result()]

    pool = ThreadPoolExecutor(worker_count())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the result says what is wrong with a file
            yield pieces()
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def decode_resumably(
    files: Sequence[ImageFile | str], side: int, journal: BinaryIO, key: str, doing: str
) -> Iterator[Decoded]:
    """Decode files, continuing what the journal says of another process under the same key.

    The images lie in a file beside the journal. A line of the journal is written once the images
    that it is about are on the disk.
    """
    folder, size, image_bytes = Path(journal.name).parent, piece_size(side), side * side * 3
    bad = _resume(journal, {"version": VERSION, "key": key, "files": len(files), "piece": size})
    done = min(len(bad) * size, len(files))
    _check_room(folder, (2 * len(files) - done) * image_bytes, doing)
    with (folder / IMAGES).open("r+b" if (folder / IMAGES).exists() else "w+b") as images:
        with (
            decode_in_pieces(files, side, done) as pieces,
            show_progress(doing, len(files), done=done) as progress,
        ):
            for results in pieces:
                images.seek(done * image_bytes)
                for result in results:
                    images.write(bytes(image_bytes) if isinstance(result, str) else result.data)
                images.flush()
                os.fsync(images.fileno())
                bad.append({done + n: one for n, one in enumerate(results) if isinstance(one, str)})
                _note(journal, list(bad[-1].items()))
                done += len(results)
                progress(done)
        reasons = {number: reason for piece in bad for number, reason in piece.items()}
        shape = (len(files), side, side, 3)
        yield Decoded(
            np.memmap(images, np.uint8, "r", shape=shape) if files else np.empty(shape, np.uint8),
            np.delete(np.arange(len(files)), list(reasons)),
            tuple(f"{where(files[n])}: {reason}" for n, reason in sorted(reasons.items())),
        )


def _resume(journal: BinaryIO, head: dict[str, Any]) -> list[dict[int, str]]:
    """Return the bad files of each finished piece; drop what the journal has beyond them."""
    journal.seek(0)
    lines = [line for line in journal if line.endswith(b"\n")]
    try:
        bad = [{int(number): str(reason) for number, reason in json.loads(x)} for x in lines[1:]]
        same = json.loads(lines[0]) == head
        same = same and all(0 <= number < head["files"] for piece in bad for number in piece)
    except (IndexError, ValueError, TypeError):
        same = False
    if same:
        journal.truncate(sum(map(len, lines)))
        return bad
    journal.truncate(0)
    _note(journal, head)
    return []


def _note(journal: BinaryIO, record: object) -> None:
    journal.write(json.dumps(record).encode() + b"\n")
    journal.flush()


def _check_room(folder: Path, needed: int, doing: str) -> None:
    """Refuse to start if the disk is too full: the images are written here, then to the cache."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DiskError(
            f"no space left on the disk of {folder.parent} while {doing}: that takes "
            f"{size_shown(needed)}, {size_shown(needed - free)} more than is free"
        )
