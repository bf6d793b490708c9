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
from typing import NamedTuple

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
    write_cache,
)
from distillmatch.sources.dataset import UNKNOWN, Dataset
from distillmatch.sources.images import Decoded, ImageFile, decode_all
from distillmatch.sources.tree_file import Branches, check_branches, class_tree, read_branches
from distillmatch.sources.walk import FoundFile, list_files, shown

SIDE = 32
HELD_OUT = 5
"""One image in so many becomes a test image where there is no test folder."""

_LABELED, _TEST, _UNLABELED = range(3)
_ANY_NAME = ("utf-8", "surrogateescape")
_DOING = "decoding the images into the cache"


def load(config: StreamConfig) -> Dataset:
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
    key = cache_key(side, branches, found)
    dataset = read_cache(cache, key)
    if dataset is None:
        with decode_all(found.image_files(), side, cache.parent, _DOING) as decoded:
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
            if not path.is_dir():
                came = "a file" if path.is_file() else "nothing"
                raise SourceError(f"{path}: expected the folder given as {key}, found {came} there")
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


class _ClassFolder(NamedTuple):
    """The images of one class, in the training or in the test folder."""

    path: str
    name: str
    files: tuple[FoundFile, ...]


@dataclass(frozen=True)
class _Found:
    """All that was found, before any image is opened; its `repr` tells one state from another."""

    labeled: tuple[_ClassFolder, ...]
    test: tuple[_ClassFolder, ...]
    unlabeled: tuple[FoundFile, ...]
    problems: tuple[str, ...]

    def image_files(self) -> list[ImageFile]:
        """Return every file to decode: labelled, then test, then unlabelled."""
        files = [file for group in (*self.labeled, *self.test) for file in group.files]
        files += self.unlabeled
        return [ImageFile.at(file.path) for file in files]


def _find(folders: _Folders) -> _Found:
    labeled, problems = _find_classes(folders.labeled)
    if not labeled:
        raise SourceError(
            f"{folders.labeled}: expected one folder of images for each class, found none"
        )
    test: tuple[_ClassFolder, ...] = ()
    if folders.test:
        test, more = _find_classes(folders.test)
        problems += more
        known = {_same(group.name) for group in labeled}
        for group in test:
            if _same(group.name) not in known:
                raise SourceError(
                    f"{shown(group.path)}: expected a class of {folders.labeled}, "
                    f"which has no '{group.name}'"
                )
    unlabeled: list[FoundFile] = []
    for folder in folders.unlabeled:
        listing = list_files(folder)
        unlabeled += listing.files
        problems += listing.problems
        if not listing.files:
            problems.append(f"{folder}: a folder of unlabelled images without any")
    return _Found(labeled, test, tuple(unlabeled), tuple(problems))


def _find_classes(root: Path) -> tuple[tuple[_ClassFolder, ...], list[str]]:
    """Return the class folders in order of their names, and what is wrong in there.

    Names that differ only in letter case or in how accents are encoded are the same name.
    """
    files, folders, problems = list_files(root)
    of_folder: dict[str, list[FoundFile]] = {
        folder: [] for folder in folders if Path(folder).parent == root
    }
    skipped = len(str(root).rstrip(os.sep)) + 1
    for file in files:
        first, _, below = file.path[skipped:].partition(os.sep)
        if below:
            of_folder[str(root / first)].append(file)
        else:
            problems.append(f"{shown(file.path)}: not in the folder of a class")
    classes: dict[str, _ClassFolder] = {}
    groups = (_ClassFolder(path, _name(path), tuple(inside)) for path, inside in of_folder.items())
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
    part, label, name = [], [], []
    for kind, groups in ((_LABELED, found.labeled), (_TEST, found.test)):
        for group in groups:
            part += [kind] * len(group.files)
            label += [number_of[_same(group.name)]] * len(group.files)
            name += [file.name for file in group.files]
    part += [_UNLABELED] * len(found.unlabeled)
    label += [UNKNOWN] * len(found.unlabeled)
    name += [file.name for file in found.unlabeled]

    kind_of_row = np.array(part, dtype=np.int64)[decoded.files]
    label_of_row = np.array(label, dtype=np.int64)[decoded.files]
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
        names = [name[file] for file in decoded.files]
        for number in kept:
            rows = np.flatnonzero((kind_of_row == _LABELED) & (label_of_row == number))
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
    by_hash = sorted(rows, key=lambda row: hashlib.sha256(names[row].encode(*_ANY_NAME)).digest())
    return np.array(by_hash[:count], dtype=np.intp)


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
