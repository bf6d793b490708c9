"""List the files below a folder in an order that does not depend on the file system."""

import hashlib
import os
import stat
import unicodedata
from collections import deque
from pathlib import Path
from typing import NamedTuple

OF_REVIEW = ".review"
"""What the review page keeps beside the labels: nothing that a person put there."""
_IGNORED = ("thumbs.db", "desktop.ini", "__macosx")


class Folder(NamedTuple):
    """A folder that was listed.

    Attributes:
        path: where it is.
        prefix: what precedes its files' names, counted from the root (NFC).
        files: the paths of the files in it, by name.
        stamp: a hash of the names, sizes, times of change and modes of the files.
    """

    path: str
    prefix: str
    files: list[str]
    stamp: str


class Listing(NamedTuple):
    """What lies below a folder.

    Attributes:
        folders: the folders by name, the root first.
        problems: a sentence about each entry that cannot be used.
        unlisted: those of the problems that are folders that could not be listed.
        special: paths of entries that are neither files nor folders.
        hidden: how many entries were ignored: hidden ones, and what desktops leave behind.
    """

    folders: list[Folder]
    problems: list[str]
    unlisted: list[str]
    special: list[str]
    hidden: int = 0

    @property
    def files(self) -> list[str]:
        """The paths of all files, folder after folder."""
        return [file for folder in self.folders for file in folder.files]


def list_files(root: Path) -> Listing:
    """List everything below `root`.

    Hidden files and those that desktops leave behind are ignored. Links to folders are followed
    after all real folders; no folder is entered twice, so links may form loops.
    """
    found, hidden = Listing([], [], [], []), 0
    entered: dict[tuple[int, int], str] = {}
    waiting = deque([(str(root), "")])  # links come last
    while waiting:
        path, prefix = waiting.popleft()
        try:
            status = Path(path).stat()
            first = entered.setdefault((status.st_dev, status.st_ino), path)
            if first != path:
                found.problems.append(f"{shown(path)}: {_second_way(path, first)}")
                continue
            with os.scandir(path) as entries:
                everything = list(entries)
        except OSError as error:
            found.unlisted.append(f"{shown(path)}: {error.strerror or error}")
            found.problems.append(found.unlisted[-1])
            continue
        files, below = [], []
        for entry in everything:
            if is_ignored(entry.name):
                hidden += entry.name != OF_REVIEW
                continue
            name = unicodedata.normalize("NFC", entry.name)
            try:
                status = entry.stat()
            except OSError as error:
                dangling = isinstance(error, FileNotFoundError) and entry.is_symlink()
                reason = "a link to nothing" if dangling else error.strerror or str(error)
            else:
                if stat.S_ISDIR(status.st_mode):
                    below.append((f"{prefix}{name}/", entry.path, entry.is_symlink()))
                    continue
                if stat.S_ISREG(status.st_mode):
                    stamps = (status.st_size, status.st_mtime_ns, status.st_mode)
                    files.append((name, entry.path, *stamps))
                    continue
                reason = "neither a file nor a folder"
            found.problems.append(f"{shown(entry.path)}: {reason}")
            found.special.append(entry.path)
        files.sort()
        content = repr((path, files)).encode(errors="surrogateescape")
        stamp = hashlib.blake2b(content, digest_size=16).hexdigest()
        found.folders.append(Folder(path, prefix, [file[1] for file in files], stamp))
        for name, place, is_link in sorted(below, reverse=True):
            (waiting.append if is_link else waiting.appendleft)((place, name))
    found.folders.sort(key=lambda folder: (folder.prefix, folder.path))
    return found._replace(hidden=hidden)


def name_below(root: Path, path: str) -> str:
    """Return the name of a file, counted from the root (NFC)."""
    return unicodedata.normalize("NFC", Path(path).relative_to(root).as_posix())


def shown(path: str | Path) -> str:
    """Return a path that can be printed on one line, whatever bytes its name is made of."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(path)
    )


def is_ignored(name: str) -> bool:
    """Return whether a name is hidden, or of a kind that desktops leave behind."""
    return name.startswith(".") or name.casefold() in _IGNORED


def _second_way(path: str, first: str) -> str:
    if Path(first) in Path(path).parents:
        return f"a link that loops back to {shown(first)}"
    return f"the same folder as {shown(first)}, which is used already"
