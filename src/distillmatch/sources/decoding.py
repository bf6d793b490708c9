"""Decoding many files into one file of images, with little memory, and on from where it stopped.

Images go into a spool, piece after piece. A spool with a journal outlives the process: for each
piece the journal has a checksum and which of the files were no images, so that whoever comes after
a killed process goes on behind the last piece that is whole.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from distillmatch.errors import DiskError, explain_disk_errors
from distillmatch.files import size_shown
from distillmatch.sources.decoders import Result, decode_in_pieces, piece_size
from distillmatch.sources.images import ImageFile
from distillmatch.terminal import show_progress

VERSION = 1
IMAGES, JOURNAL = "images", "journal"


@dataclass(frozen=True)
class Decoded:
    """What came of a list of files: `images[i]` is file `files[i]`; `problems` has the others."""

    images: NDArray[np.uint8]
    files: NDArray[np.intp]
    problems: tuple[str, ...]


@contextmanager
def decode_all(
    files: Sequence[ImageFile], side: int, folder: Path, doing: str
) -> Iterator[Decoded]:
    """Decode many files; the images lie in a nameless file in `folder`.

    The file, and with it the images, is gone when the block ends, however it ends.
    """
    with explain_disk_errors(doing, folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as images:
            yield _decode(files, side, _Spool(images, side), doing)


@contextmanager
def decode_resumably(
    files: Sequence[ImageFile], side: int, folder: Path, key: str, doing: str
) -> Iterator[Decoded]:
    """Decode many files, going on from what an earlier process left in `folder` under this key."""
    with explain_disk_errors(doing, folder):
        head = {"version": VERSION, "key": key, "files": len(files), "piece": piece_size(side)}
        with (folder / IMAGES).open("a+b") as images, (folder / JOURNAL).open("a+b") as journal:
            spool = _Spool(images, side, journal)
            spool.continue_from(head)
            _check_room(folder, len(files), spool, doing)
            yield _decode(files, side, spool, doing)


@dataclass
class _Spool:
    """Images one after another in a file, and what is known of the files they came from."""

    images: BinaryIO
    side: int
    journal: BinaryIO | None = None
    seen: int = 0
    good: list[NDArray[np.intp]] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)

    @property
    def image_bytes(self) -> int:
        """The bytes of one image."""
        return self.side * self.side * 3

    @property
    def count(self) -> int:
        """The images decoded so far."""
        return self.seen - len(self.bad)

    def continue_from(self, head: dict[str, Any]) -> None:
        """Believe of the journal what its checksums confirm; drop what comes after."""
        assert self.journal is not None
        self.journal.seek(0)
        self.images.seek(0)
        whole = 0
        for number, line in enumerate(self.journal):
            record = _record(line)
            if record is None or (number == 0 and record != head):
                break
            if number and not self._confirm(record):
                break
            whole += len(line)
        self.journal.truncate(whole)
        self.images.truncate(self.count * self.image_bytes)
        if not whole:
            self._note(head)

    def add(self, results: Sequence[Result]) -> None:
        """Write a piece down: its images, then what the journal has to say of it."""
        pixels = [result for result in results if not isinstance(result, str)]
        reasons = {str(n): r for n, r in enumerate(results) if isinstance(r, str)}
        digest = hashlib.blake2b(digest_size=16)
        for image in pixels:
            digest.update(image.data)
            self.images.write(image.data)
        self.images.flush()
        record = {"files": len(results), "bad": reasons, "digest": digest.hexdigest()}
        if self.journal is not None:
            self._note(record)
        self._count(record)

    def array(self) -> NDArray[np.uint8]:
        """Return the images, mapped from the file."""
        shape = (self.count, self.side, self.side, 3)
        if not self.count:
            return np.empty(shape, dtype=np.uint8)
        return np.memmap(self.images, dtype=np.uint8, mode="r", shape=shape)

    def _confirm(self, record: dict[str, Any]) -> bool:
        """Compare a piece in the file with its checksum, and count it if it is as it was."""
        try:
            size = (record["files"] - len(record["bad"])) * self.image_bytes
            content = self.images.read(size)
            if hashlib.blake2b(content, digest_size=16).hexdigest() != record["digest"]:
                return False
            self._count(record)
        except (KeyError, TypeError, ValueError):
            return False
        return True

    def _count(self, record: dict[str, Any]) -> None:
        count, bad = record["files"], {int(n): reason for n, reason in record["bad"].items()}
        numbers = np.arange(self.seen, self.seen + count, dtype=np.intp)
        self.good.append(np.delete(numbers, list(bad)))
        self.bad |= {self.seen + n: reason for n, reason in bad.items()}
        self.seen += count

    def _note(self, record: dict[str, Any]) -> None:
        assert self.journal is not None
        self.journal.write(json.dumps(record).encode() + b"\n")
        self.journal.flush()


def _decode(files: Sequence[ImageFile], side: int, spool: _Spool, doing: str) -> Decoded:
    """Decode what is missing in a spool."""
    with (
        decode_in_pieces(files, side, spool.seen) as pieces,
        show_progress(doing, len(files), done=spool.seen) as progress,
    ):
        for results in pieces:
            spool.add(results)
            progress(spool.seen)
    good = np.concatenate([np.empty(0, np.intp), *spool.good])
    problems = tuple(f"{files[n].where}: {reason}" for n, reason in sorted(spool.bad.items()))
    return Decoded(spool.array(), good, problems)


def _check_room(folder: Path, files: int, spool: _Spool, doing: str) -> None:
    """Refuse to begin what cannot end well: the images are written here and then into the cache."""
    needed = (2 * files - spool.count) * spool.image_bytes
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DiskError(
            f"no space left on the disk of {folder.parent} while {doing}: that takes "
            f"{size_shown(needed)}, {size_shown(needed - free)} more than is free"
        )


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if line.endswith(b"\n") and isinstance(record, dict) else None
