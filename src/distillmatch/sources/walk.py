"""List the files below a folder in an order that does not depend on the file system."""

import hashlib
import os
import stat
import unicodedata
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

OF_REVIEW = ".review"
"""The folder in which the review page keeps its own files."""
_IGNORED = ("thumbs.db", "desktop.ini", "__macosx")


@dataclass
class Listing:
    """What lies below a folder.

    Attributes:
        folders: the paths of the folders, the root first.
        files: the paths of the files, folder after folder.
        stamp: a hash of the names, sizes, modification times and modes of the files.
        problems: a sentence about each entry that cannot be used.
        unlisted: the problems that are folders that could not be listed.
        special: paths of entries that are neither files nor folders.
        hidden: how many entries were ignored: hidden ones, and what desktops leave behind.
    """

    folders: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    stamp: str = ""
    problems: list[str] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)
    special: list[str] = field(default_factory=list)
    hidden: int = 0


def list_files(root: Path) -> Listing:
    """List everything below `root`.

    Hidden files and those that desktops leave behind are ignored. Links to folders are followed
    after all real folders; no folder is entered twice, so links may form loops.
    """
    found = Listing()
    entered: dict[tuple[int, int], str] = {}
    files_in: dict[str, list[tuple[str, str, int, int, int]]] = {}
    waiting = deque([str(root)])
    while waiting:
        path = waiting.popleft()
        try:
            status = Path(path).stat()
            first = entered.setdefault((status.st_dev, status.st_ino), path)
            if first != path:
                reason = f"the same folder as {shown(first)}, which is used already"
                found.problems.append(f"{shown(path)}: {reason}")
                continue
            with os.scandir(path) as entries:
                everything = sorted(entries, key=lambda entry: (_normal(entry.name), entry.name))
        except OSError as error:
            found.unlisted.append(f"{shown(path)}: {error.strerror or error}")
            found.problems.append(found.unlisted[-1])
            continue
        files, below = files_in.setdefault(path, []), []
        for entry in everything:
            if is_ignored(entry.name):
                found.hidden += entry.name != OF_REVIEW
            elif isinstance(kind := _kind_of(entry), str):
                found.problems.append(f"{shown(entry.path)}: {kind}")
                found.special.append(entry.path)
            elif stat.S_ISDIR(kind.st_mode):
                below.append(entry)
            else:
                stamp = (kind.st_size, kind.st_mtime_ns, kind.st_mode)
                files.append((_normal(entry.name), entry.path, *stamp))
        waiting.extendleft(entry.path for entry in reversed(below) if not entry.is_symlink())
        waiting.extend(entry.path for entry in reversed(below) if entry.is_symlink())
    found.folders = sorted(files_in, key=lambda path: (_normal(f"{path}/"), path))
    content = [(path, files_in[path]) for path in found.folders]
    found.files = [file[1] for _, files in content for file in files]
    described = repr(content).encode(errors="surrogateescape")
    found.stamp = hashlib.blake2b(described, digest_size=16).hexdigest()
    return found


def name_below(root: Path, path: str) -> str:
    """Return the name of a file, counted from the root (NFC)."""
    return _normal(Path(path).relative_to(root).as_posix())


def shown(path: str | Path) -> str:
    """Return a path that can be printed on one line, whatever bytes its name is made of."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(path)
    )


def is_ignored(name: str) -> bool:
    """Return whether a name is hidden, or one that desktops leave behind."""
    return name.startswith(".") or name.casefold() in _IGNORED


def _kind_of(entry: os.DirEntry[str]) -> os.stat_result | str:
    """Return the status of a file or folder, or the reason why an entry is neither."""
    try:
        status = entry.stat()
    except OSError as error:
        dangling = isinstance(error, FileNotFoundError) and entry.is_symlink()
        return "a link to nothing" if dangling else error.strerror or str(error)
    usable = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    return status if usable else "neither a file nor a folder"


def _normal(name: str) -> str:
    return unicodedata.normalize("NFC", name)
