"""Own images: `folder/<class>/*` for labels, a test folder, folders of unlabelled images.

Without a test folder a fifth of every class is held out as the test part: the images whose names
have the smallest hashes, so that the choice depends on no seed and stays when images are added.
Whatever cannot be used is a problem, named with its path: it ends the load, or it is left out.
"""

import hashlib
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, SourceError
from distillmatch.sources.cache import (
    Contents,
    Selection,
    cache_folder,
    cache_key,
    read_cache,
    workshop,
    write_cache,
)
from distillmatch.sources.dataset import UNKNOWN, Dataset
from distillmatch.sources.decoding import Decoded, decode_resumably
from distillmatch.sources.images import ImageFile
from distillmatch.sources.registry import CheckedSource
from distillmatch.sources.tree_file import Branches, check_branches, class_tree, read_branches
from distillmatch.sources.walk import FileTable, FoundFile, list_files, shown

SIDE = 32
HELD_OUT = 5
"""One image in so many becomes a test image where there is no test folder."""

_LABELED, _TEST, _UNLABELED = range(3)
_ANY_NAME = ("utf-8", "surrogateescape")
_DOING = "decoding the images into the cache"


def _load(config: StreamConfig) -> Dataset:
    """Load a user's own images, or what they were cached as if nothing has changed since."""
    folders = _Folders.of(config)
    side = config.image_size or SIDE
    found = _find(folders)
    branches = None
    if config.tree is not None:
        tree = config.tree.expanduser()
        branches = read_branches(tree)
        check_branches(branches, [group.name for group in found.labeled], tree)
    place = cache_key(*map(str, folders), side, branches is not None)
    cache = cache_folder(config) / f"folder-{place}.images"
    key = cache_key(side, branches, found.digest())
    dataset = read_cache(cache, key)
    if dataset is None:
        files = _ImageFiles(found.files())
        with workshop(cache, _DOING) as folder:
            dataset = read_cache(cache, key)
            if dataset is None:
                with decode_resumably(files, side, folder, key, _DOING) as decoded:
                    contents = _arrange(config, found, decoded, branches)
                    dataset = write_cache(cache, key, decoded.images, contents, _DOING)
    if config.bad_images == "stop":
        _stop_at(dataset.problems)
    return dataset


class _Folders(NamedTuple):
    labeled: Path
    test: Path | None
    unlabeled: tuple[Path, ...]

    @classmethod
    def of(cls, config: StreamConfig) -> "_Folders":
        """Return the configured folders, each there and none inside another."""
        if config.data_dir is None:
            raise ConfigError(
                "data_dir must be given with source 'folder': a folder with one folder a class"
            )
        given = [("data_dir", config.data_dir)]
        given += [("test_dir", config.test_dir)] if config.test_dir else []
        given += [("unlabeled_dirs", folder) for folder in config.unlabeled_dirs]
        paths = [(key, path.expanduser().absolute()) for key, path in given]
        for key, path in paths:
            _refuse_unless_listed(key, path)
        for (key, one), (other_key, other) in combinations(paths, 2):
            if one.resolve().is_relative_to(other.resolve()) or other.resolve().is_relative_to(
                one.resolve()
            ):
                raise ConfigError(
                    f"{other_key} must lie apart from {key}, or images would count twice: "
                    f"{other} and {one}"
                )
        return cls(
            paths[0][1],
            paths[1][1] if config.test_dir else None,
            tuple(path for key, path in paths if key == "unlabeled_dirs"),
        )


def _refuse_unless_listed(key: str, path: Path) -> None:
    """Refuse a path that is no folder, or one whose entries the system keeps back."""
    try:
        if not path.is_dir():
            came = "a file" if path.is_file() else "nothing"
            raise SourceError(f"{path}: expected the folder given as {key}, found {came} there")
        with os.scandir(path):
            pass
    except OSError as error:
        raise SourceError(
            f"{path}: the folder given as {key} cannot be listed: {error.strerror or error}"
        ) from None


load = CheckedSource(_load, _Folders.of)


class ClassFolder(NamedTuple):
    """The images of one class, in the training or in the test folder."""

    path: str
    name: str
    files: "FoundFiles"


class FoundFiles(Sequence[FoundFile]):
    """Some files of tables, one after another, each made an object only when it is asked for."""

    def __init__(self, chosen: Sequence[tuple[FileTable, NDArray[np.int64]]]) -> None:
        self.chosen = chosen
        self.ends = np.cumsum([len(rows) for _, rows in chosen], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @overload
    def __getitem__(self, number: int) -> FoundFile: ...
    @overload
    def __getitem__(self, number: slice) -> list[FoundFile]: ...
    def __getitem__(self, number: int | slice) -> FoundFile | list[FoundFile]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        which = int(np.searchsorted(self.ends, number, side="right"))
        table, rows = self.chosen[which]
        return table[int(rows[number - (self.ends[which] - len(rows))])]


class _ImageFiles(Sequence[ImageFile]):
    """Found files as what is decoded."""

    def __init__(self, found: FoundFiles) -> None:
        self.found = found

    def __len__(self) -> int:
        return len(self.found)

    @overload
    def __getitem__(self, number: int) -> ImageFile: ...
    @overload
    def __getitem__(self, number: slice) -> list[ImageFile]: ...
    def __getitem__(self, number: int | slice) -> ImageFile | list[ImageFile]:
        if isinstance(number, slice):
            return [ImageFile.at(file.path) for file in self.found[number]]
        return ImageFile.at(self.found[number].path)


@dataclass(frozen=True)
class _Found:
    """All that was found, before any image is opened."""

    labeled: tuple[ClassFolder, ...]
    test: tuple[ClassFolder, ...]
    unlabeled: tuple[FileTable, ...]
    problems: tuple[str, ...]

    def files(self) -> FoundFiles:
        """Return every file to decode: labelled, then test, then unlabelled."""
        chosen = [pair for group in (*self.labeled, *self.test) for pair in group.files.chosen]
        return FoundFiles(chosen + [(table, np.arange(len(table))) for table in self.unlabeled])

    def digest(self) -> str:
        """Return a hash that tells one state of the folders from another."""
        tables = {id(table): table for table, _ in self.files().chosen}
        return cache_key(*(table.digest() for table in tables.values()), self.problems)


def _find(folders: _Folders) -> _Found:
    labeled, problems = find_classes(folders.labeled)
    if not labeled:
        raise SourceError(
            f"{folders.labeled}: expected one folder of images for each class, found none"
        )
    test: tuple[ClassFolder, ...] = ()
    if folders.test:
        test, more = find_classes(folders.test)
        problems += more
        known = {_same(group.name) for group in labeled}
        for group in test:
            if _same(group.name) not in known:
                raise SourceError(
                    f"{shown(group.path)}: expected a class of {folders.labeled}, "
                    f"which has no '{group.name}'"
                )
    unlabeled: list[FileTable] = []
    for folder in folders.unlabeled:
        listing = list_files(folder)
        unlabeled.append(listing.files)
        problems += listing.problems
        if not len(listing.files):
            problems.append(f"{folder}: a folder of unlabelled images without any")
    return _Found(labeled, test, tuple(unlabeled), tuple(problems))


def find_classes(root: Path) -> tuple[tuple[ClassFolder, ...], list[str]]:
    """Return the class folders in order of their names, and what is wrong in there.

    Names that differ only in letter case or in how accents are encoded are the same name.
    """
    files, folders, problems, *_ = list_files(root)
    of_folder: dict[str, list[NDArray[np.int64]]] = {
        folder: [] for folder in folders if Path(folder).parent == root
    }
    skipped = len(str(root).rstrip(os.sep)) + 1
    start = 0
    for (folder, _), end in zip(files.folders, files.ends.tolist(), strict=True):
        first = folder[skipped:].partition(os.sep)[0]
        if first:
            of_folder[str(root / first)].append(np.arange(start, end))
        else:
            problems += [
                f"{shown(files[number].path)}: not in the folder of a class"
                for number in range(start, end)
            ]
        start = end
    classes: dict[str, ClassFolder] = {}
    groups = (
        ClassFolder(path, _name(path), FoundFiles([(files, rows) for rows in inside]))
        for path, inside in of_folder.items()
    )
    for group in sorted(groups, key=lambda group: (group.name, group.path)):
        twin = classes.setdefault(_same(group.name), group)
        if twin is not group:
            problems.append(f"{shown(group.path)}: the same class name as {shown(twin.path)}")
        elif not group.files:
            problems.append(f"{shown(group.path)}: a class without images")
    return tuple(classes.values()), problems


def _arrange(
    config: StreamConfig, found: _Found, decoded: Decoded, branches: Branches | None
) -> Contents:
    """Make both parts of what could be decoded; a class with nothing left is left out."""
    number_of = {_same(group.name): number for number, group in enumerate(found.labeled)}
    runs = [(_LABELED, number_of[_same(g.name)], len(g.files)) for g in found.labeled]
    runs += [(_TEST, number_of[_same(g.name)], len(g.files)) for g in found.test]
    runs += [(_UNLABELED, UNKNOWN, len(table)) for table in found.unlabeled]
    part, label, lengths = np.array(runs, dtype=np.int64).T
    kind_of_row = np.repeat(part, lengths)[decoded.files]
    label_of_row = np.repeat(label, lengths)[decoded.files]
    kept = np.unique(label_of_row[kind_of_row == _LABELED])
    problems = [*found.problems, *decoded.problems]
    for number, group in enumerate(found.labeled):
        if group.files and number not in kept:
            problems.append(f"{shown(group.path)}: a class without usable images")
    problems.sort()
    if not len(kept):
        if config.bad_images == "stop":
            _stop_at(problems)
        raise SourceError(
            f"{config.data_dir}: expected images in the folders of classes, found none"
        )

    if config.test_dir is None:
        files = found.files()
        labeled = np.flatnonzero(kind_of_row == _LABELED)  # class after class
        for rows in np.split(labeled, np.flatnonzero(np.diff(label_of_row[labeled])) + 1):
            names = [files[int(file)].name for file in decoded.files[rows]]
            kind_of_row[_held_out(rows, names)] = _TEST
    new_number = np.full(len(found.labeled) + 1, UNKNOWN, dtype=np.int64)
    new_number[kept] = np.arange(len(kept))
    label_of_row = new_number[label_of_row]  # the last entry serves UNKNOWN

    def select(wanted: NDArray[np.bool_]) -> Selection:
        return Selection(np.flatnonzero(wanted), label_of_row[wanted])

    class_names = tuple(found.labeled[number].name for number in kept)
    return Contents(
        name="folder",
        train=select(kind_of_row != _TEST),
        test=select((kind_of_row == _TEST) & (label_of_row != UNKNOWN)),
        class_names=class_names,
        tree=None if branches is None else class_tree(branches, class_names),
        label_fraction=1.0 if config.unlabeled_dirs else 0.2,
        problems=tuple(problems),
    )


def _held_out(rows: NDArray[np.intp], names: Sequence[str]) -> NDArray[np.intp]:
    """Choose a fifth of a class's images, at least one of two, by the hashes of their names."""
    if len(rows) < 2:
        return rows[:0]
    count = max(1, round(len(rows) / HELD_OUT))
    hashes = [hashlib.sha256(name.encode(*_ANY_NAME)).digest() for name in names]
    by_hash = sorted(range(len(rows)), key=hashes.__getitem__)
    return rows[by_hash[:count]]


def _stop_at(problems: Sequence[str]) -> None:
    """Refuse to go on with files that cannot be used."""
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise SourceError(f"{problems[0]}{more}; leave such files out with --bad-images skip")


def _name(path: str) -> str:
    return unicodedata.normalize("NFC", shown(Path(path).name))


def _same(name: str) -> str:
    """Return what two names have in common that count as the same."""
    return unicodedata.normalize("NFC", name.casefold())
