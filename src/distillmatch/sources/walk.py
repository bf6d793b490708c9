"""Listing the files of a folder, nested as they come, in an order that no file system decides.

There may be millions of files, so what is known of them is kept in about fifty bytes each.
"""

import hashlib
import os
import stat
import unicodedata
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_NOT_MEANT = ("thumbs.db", "desktop.ini", "__macosx")


class FoundFile(NamedTuple):
    """A file below a folder: its path, its name from there (NFC), and what tells a change."""

    path: str
    name: str
    size: int
    modified: int
    mode: int


class ScannedFolder(NamedTuple):
    """The files right in one folder: their names as the system has them, a zero byte after each.

    `prefix` comes before their names (NFC). `stamps` has size, time of change and mode of each.
    """

    path: str
    prefix: str
    names: bytes
    stamps: NDArray[np.int64]


class FileTable:
    """Files by number: folder after folder by name, and in each the files by name."""

    def __init__(self, folders: list[ScannedFolder]) -> None:
        folders = sorted(folders, key=lambda folder: (folder.prefix, folder.path))
        self.folders = [(folder.path, folder.prefix) for folder in folders]
        self.ends = np.cumsum([len(folder.stamps) for folder in folders], dtype=np.int64)
        self._names = b"".join(folder.names for folder in folders)
        after = np.flatnonzero(np.frombuffer(self._names, np.uint8) == 0) + 1
        self._starts = np.concatenate([[0], after])
        none = np.empty((0, 3), np.int64)
        self._stamps = np.concatenate([none, *(folder.stamps for folder in folders)])

    def __len__(self) -> int:
        return len(self._stamps)

    def __getitem__(self, number: int) -> FoundFile:
        folder, prefix = self.folders[int(np.searchsorted(self.ends, number, side="right"))]
        start, end = self._starts[number : number + 2].tolist()
        name = os.fsdecode(self._names[start : end - 1])
        path = os.path.join(folder, name)  # noqa: PTH118 - millions of times, on plain text
        return FoundFile(path, prefix + _composed(name), *self._stamps[number].tolist())

    def __iter__(self) -> Iterator[FoundFile]:
        return (self[number] for number in range(len(self)))

    def digest(self) -> str:
        """Return a hash of everything about the files."""
        digest = hashlib.blake2b(self._names, digest_size=16)
        digest.update(self._stamps.tobytes())
        digest.update(self.ends.tobytes())
        digest.update(repr(self.folders).encode(errors="surrogateescape"))
        return digest.hexdigest()


class Listing(NamedTuple):
    """What lies below a folder: files by name, paths of folders, and what could not be followed.

    Of the problems some are of folders that could not be listed, and some of entries that are
    neither files nor folders, whose paths are there too.
    """

    files: FileTable
    folders: list[str]
    problems: list[str]
    unlisted: list[str]
    strangers: list[str]


def list_files(root: Path, only: str = "") -> Listing:
    """List everything below `root`, or below its sub-folder `only`.

    Hidden files and those that desktops leave behind are passed over. Links to folders are
    followed, after all real folders; no folder is entered twice, so that links may form loops.
    """
    scanned: list[ScannedFolder] = []
    folders: list[str] = []
    problems: list[str] = []
    unlisted: list[str] = []
    strangers: list[str] = []
    entered: dict[tuple[int, int], str] = {}
    waiting = [(str(root / only), f"{only}/" if only else "")]
    links: deque[tuple[str, str]] = deque()
    while waiting or links:
        folder, prefix = waiting.pop() if waiting else links.popleft()
        try:
            found = Path(folder).stat()
            first = entered.setdefault((found.st_dev, found.st_ino), folder)
            if first != folder:
                problems.append(f"{shown(folder)}: {_second_way(folder, first)}")
                continue
            with os.scandir(folder) as entries:
                inside = [entry for entry in entries if not _passed_over(entry.name)]
        except OSError as error:
            unlisted.append(f"{shown(folder)}: {error.strerror or error}")
            problems.append(unlisted[-1])
            continue
        folders.append(folder)
        below = []
        files: list[tuple[str, bytes, int, int, int]] = []
        for entry in inside:
            try:
                status = entry.stat()
            except OSError as error:
                problems.append(f"{shown(entry.path)}: {_why_no_status(entry, error)}")
                strangers.append(entry.path)
                continue
            name = _composed(entry.name)
            if stat.S_ISDIR(status.st_mode):
                below.append((entry.path, f"{prefix}{name}/"))
            elif stat.S_ISREG(status.st_mode):
                stamps = status.st_size, status.st_mtime_ns, status.st_mode
                files.append((name, os.fsencode(entry.name), *stamps))
            else:
                problems.append(f"{shown(entry.path)}: neither a file nor a folder")
                strangers.append(entry.path)
        if files:
            scanned.append(_scanned(folder, prefix, files))
        for pair in sorted(below, key=lambda pair: (pair[1], pair[0]), reverse=True):
            (links if Path(pair[0]).is_symlink() else waiting).append(pair)
    return Listing(FileTable(scanned), folders, problems, unlisted, strangers)


def shown(path: str | Path) -> str:
    """Return a path as it can be printed on one line, whatever bytes its name is made of."""
    text = os.fsencode(path).decode("utf-8", "replace")
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def _scanned(
    folder: str, prefix: str, files: list[tuple[str, bytes, int, int, int]]
) -> ScannedFolder:
    files.sort()
    names = b"".join(file[1] + b"\0" for file in files)
    stamps = np.array([file[2:] for file in files], dtype=np.int64)
    return ScannedFolder(folder, prefix, names, stamps)


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _passed_over(name: str) -> bool:
    return name.startswith(".") or name.casefold() in _NOT_MEANT


def _second_way(folder: str, first: str) -> str:
    if Path(first) in Path(folder).parents:
        return f"a link that loops back to {shown(first)}"
    return f"the same folder as {shown(first)}, which is used already"


def _why_no_status(entry: os.DirEntry[str], error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and entry.is_symlink():
        return "a link to nothing"
    return error.strerror or str(error)
