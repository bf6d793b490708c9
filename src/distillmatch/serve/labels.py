"""Labels given on the page: each labeled image lies in the folder of its class.

The folders are the only record. A file there is called after the image's name and a hash of its
content, so an image is recognized in any folder, and moving the file by hand moves its
label. What is not a label lies in the hidden folder `.review`, which `learn` ignores.
"""

import contextlib
import os
import re
import shutil
import threading
import unicodedata
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path

from distillmatch.errors import LearnerError, explain_disk_errors
from distillmatch.files import atomic_file
from distillmatch.learner.labels import UNKNOWN
from distillmatch.serve.camera import Shot
from distillmatch.sources.walk import OF_REVIEW, is_ignored, shown

SKIPPED = ""
"""The label of an image to leave out."""
LONGEST = 200
"""Most bytes of a class name, which any file system accepts."""
_MOST_ACTIONS = 100
_DIGEST = re.compile(r"-([0-9a-f]{16})(?:\.\w+)?\Z")
_KEEPING = "keeping a label"


class Labels:
    """The labels in one folder, with the actions that can be undone until it is closed."""

    def __init__(self, folder: Path, classes: Sequence[str], shots: Sequence[Shot]) -> None:
        self.folder = folder
        self._skipped = folder / OF_REVIEW / "skipped"
        self._learned = tuple(classes)
        self._shots = shots
        self._files: dict[int, Path] = {}
        self._others: set[str] = set()
        self._change = threading.Lock()
        self._actions: deque[dict[int, str | None]] = deque(maxlen=_MOST_ACTIONS)
        with explain_disk_errors("reading the labels", folder):
            self._read_folders()

    def of(self, number: int) -> str | None:
        """Return the label of the image of this number, `SKIPPED`, or None if it has neither."""
        path = self._files.get(number)
        return None if path is None else self._label_of(path.parent)

    @property
    def classes(self) -> list[str]:
        """The classes that were learned, then new ones in order."""
        given = {self._label_of(path.parent) for path in list(self._files.values())}
        return [*self._learned, *sorted((given | self._others) - {SKIPPED, *self._learned})]

    @property
    def labeled(self) -> int:
        """How many images have a label."""
        return sum(path.parent != self._skipped for path in self._files.values())

    @property
    def undoable(self) -> int:
        """How many actions can be undone."""
        return len(self._actions)

    def give(self, numbers: Sequence[int], label: str | None) -> list[int]:
        """Give images a label, `SKIPPED` or none; return those that changed.

        If the disk refuses, what was changed before that can be undone.
        """
        with self._change:
            name = class_name(label, self.classes) if label else label
            before: dict[int, str | None] = {}
            try:
                self._put_all(dict.fromkeys(numbers, name), before)
            finally:
                if before:
                    self._actions.append(before)
            return list(before)

    def undo(self) -> list[int]:
        """Undo the last action; return the images that changed."""
        with self._change:
            if not self._actions:
                return []
            changed: dict[int, str | None] = {}
            self._put_all(self._actions[-1], changed)
            self._actions.pop()
            return list(changed)

    def _put_all(self, labels: dict[int, str | None], before: dict[int, str | None]) -> None:
        """Give each image its label; note what it had before in `before`."""
        with explain_disk_errors(_KEEPING, self.folder):
            folders = {label: self._folder_of(label) for label in set(labels.values()) - {None}}
            for number, label in labels.items():
                old = self.of(number)
                if old != label:
                    self._put(number, None if label is None else folders[label])
                    before[number] = old

    def _put(self, number: int, folder: Path | None) -> None:
        """Move an image's file to a folder, or bring it there, or remove it."""
        old, shot = self._files.get(number), self._shots[number]
        if folder is None:
            self._files.pop(number).unlink(missing_ok=True)
        else:
            target = folder / _file_name(shot)
            folder.mkdir(parents=True, exist_ok=True)
            if old is not None and old.exists():
                old.replace(target)
            else:
                _bring(shot, target)
            self._files[number] = target
        if old is not None:
            with contextlib.suppress(OSError):  # others may be in it
                old.parent.rmdir()

    def _label_of(self, folder: Path) -> str:
        return SKIPPED if folder == self._skipped else unicodedata.normalize("NFC", folder.name)

    def _folder_of(self, label: str | None) -> Path:
        """Return the folder of a label; every path that is written to is made here."""
        if not label:
            return self._skipped
        folder = self.folder / class_name(label, self.classes)
        if folder.is_symlink():
            raise LearnerError(f"{shown(folder)}: a link, which labels are not written through")
        return folder

    def _read_folders(self) -> None:
        """Find the images that have a label, and the classes of other files."""
        number_of = {shot.digest: number for number, shot in enumerate(self._shots)}
        places = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        for place in (*(place for place in places if not is_ignored(place.name)), self._skipped):
            if not place.is_dir() or place.is_symlink():
                continue
            for path in sorted(place.iterdir()):
                found = _DIGEST.search(path.name)
                number = number_of.get(found[1]) if found else None
                if number is not None and number not in self._files:
                    self._files[number] = path
                else:
                    self._others.add(self._label_of(place))


def class_name(text: str, known: Collection[str]) -> str:
    """Return the class that a typed name means; raise if no folder can have the name.

    A known class is found in any letter case; two folders may not differ in that alone.
    """
    name = text
    if text not in known:
        name = unicodedata.normalize("NFC", " ".join(text.split()))
        name = next((one for one in known if one.casefold() == name.casefold()), name)
    if not name:
        raise LearnerError("a class must have a name")
    if name == UNKNOWN:
        raise LearnerError(f"no class may be called '{UNKNOWN}': it stands for images of no class")
    if len(name.encode(errors="replace")) > LONGEST:
        raise LearnerError(f"a class name must have at most {LONGEST} bytes, not this many")
    if not name.isprintable() or any(letter in name for letter in "/\\") or is_ignored(name):
        raise LearnerError(
            f"a class name must be a folder's name without a dot in front, / or \\, not {name!r}"
        )
    return name


def _file_name(shot: Shot) -> str:
    """Return a file name by which the image is recognized."""
    name = Path(shot.path).name
    stem, suffix = Path(name).stem, Path(name).suffix
    safe = re.sub(r"[^\w.-]+", "_", stem).lstrip(".")[:40]
    return f"{safe}-{shot.digest}{suffix if re.fullmatch(r'[.][A-Za-z0-9]{1,8}', suffix) else ''}"


def _bring(shot: Shot, target: Path) -> None:
    """Put an image into a folder atomically: a hard link, or a copy where there are no links."""
    shot.refuse_change()
    try:
        os.link(os.path.realpath(shot.path), target)
    except FileExistsError:
        return  # its name says that the content is the same
    except OSError:  # another disk, or one without links
        with atomic_file(target, _KEEPING) as file, Path(shot.path).open("rb") as source:
            shutil.copyfileobj(source, file)
