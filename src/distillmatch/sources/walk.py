"""Listing the files of a folder, nested as they come, in an order that no file system decides."""

import os
import stat
import unicodedata
from collections import deque
from pathlib import Path
from typing import NamedTuple

_NOT_MEANT = ("thumbs.db", "desktop.ini", "__macosx")


class FoundFile(NamedTuple):
    """A file below a folder: its path, its name from there (NFC), and what tells a change."""

    path: str
    name: str
    size: int
    modified: int
    mode: int


class Listing(NamedTuple):
    """What lies below a folder: files by name, paths of folders, and what could not be followed."""

    files: list[FoundFile]
    folders: list[str]
    problems: list[str]


def list_files(root: Path, only: str = "") -> Listing:
    """List everything below `root`, or below its sub-folder `only`.

    Hidden files and those that desktops leave behind are passed over. Links to folders are
    followed, after all real folders; no folder is entered twice, so that links may form loops.
    """
    files: list[FoundFile] = []
    folders: list[str] = []
    problems: list[str] = []
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
            problems.append(f"{shown(folder)}: {error.strerror or error}")
            continue
        folders.append(folder)
        below = []
        for entry in inside:
            try:
                status = entry.stat()
            except OSError as error:
                problems.append(f"{shown(entry.path)}: {_why_no_status(entry, error)}")
                continue
            name = prefix + unicodedata.normalize("NFC", entry.name)
            if stat.S_ISDIR(status.st_mode):
                below.append((entry.path, f"{name}/"))
            elif stat.S_ISREG(status.st_mode):
                files.append(
                    FoundFile(entry.path, name, status.st_size, status.st_mtime_ns, status.st_mode)
                )
            else:
                problems.append(f"{shown(entry.path)}: neither a file nor a folder")
        for pair in sorted(below, key=lambda pair: (pair[1], pair[0]), reverse=True):
            (links if Path(pair[0]).is_symlink() else waiting).append(pair)
    files.sort(key=lambda file: (file.name, file.path))
    return Listing(files, folders, problems)


def shown(path: str | Path) -> str:
    """Return a path as it can be printed on one line, whatever bytes its name is made of."""
    text = os.fsencode(path).decode("utf-8", "replace")
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


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
