"""Own images: `folder/<class>/*` with labels, a test folder, folders of unlabeled images.

Without a test folder a fifth of every class is held out as the test part: the images whose names
have the smallest hashes, so the choice depends on no seed and stays when images are added. Whatever
cannot be used is a problem that names its path: it ends the load, or it is left out.
"""

import hashlib
import os
import unicodedata
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, SourceError
from distillmatch.sources.cache import Contents, Selection, cache_key, load_cached
from distillmatch.sources.dataset import UNKNOWN, Dataset
from distillmatch.sources.decoding import Decoded
from distillmatch.sources.registry import CheckedSource
from distillmatch.sources.tree_file import Branches, check_branches, class_tree, read_branches
from distillmatch.sources.walk import list_files, name_below, shown

SIDE = 32
HELD_OUT = 5
"""One image in so many becomes a test image where there is no test folder."""

_LABELED, _TEST = 0, 1  # and 2 for unlabeled images


def _load(config: StreamConfig) -> Dataset:
    """Load a user's own images, from the cache if nothing has changed."""
    folders, side, branches = _folders(config), config.image_size or SIDE, None
    found = _find(folders)
    if config.tree is not None:
        tree = config.tree.expanduser()
        branches = read_branches(tree)
        check_branches(branches, [group.name for group in found.labeled], tree)
    dataset = load_cached(
        config,
        f"folder-{cache_key(*map(str, folders), side, branches is not None)}",
        cache_key(side, branches, *found.stamps, found.problems),
        side,
        lambda: (found.files, partial(_arrange, config, folders.labeled, found, branches)),
        "decoding the images into the cache",
    )
    if config.bad_images == "stop":
        _refuse_problems(dataset.problems)
    return dataset


class _Folders(NamedTuple):
    labeled: Path
    test: Path | None
    unlabeled: tuple[Path, ...]


def _folders(config: StreamConfig) -> _Folders:
    """Return the configured folders; refuse missing ones, and one inside another."""
    if config.data_dir is None:
        raise ConfigError(
            "data_dir must be given with source 'folder': a folder with one folder a class"
        )
    given = [("data_dir", config.data_dir), ("test_dir", config.test_dir)]
    given += [("unlabeled_dirs", folder) for folder in config.unlabeled_dirs]
    paths = [(key, path.expanduser().absolute()) for key, path in given if path]
    for key, path in paths:
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
    for (key, one), (other_key, other) in combinations(paths, 2):
        pair = one.resolve(), other.resolve()
        if pair[0].is_relative_to(pair[1]) or pair[1].is_relative_to(pair[0]):
            raise ConfigError(
                f"{other_key} must lie apart from {key}, or images would count twice: "
                f"{other} and {one}"
            )
    found = dict(paths)
    unlabeled = tuple(path for key, path in paths if key == "unlabeled_dirs")
    return _Folders(found["data_dir"], found.get("test_dir"), unlabeled)


load = CheckedSource(_load, _folders)


class Group(NamedTuple):
    """The files of one class, or of one folder of unlabeled images."""

    path: str
    name: str
    files: list[str]
    stamps: list[str]


class _Found(NamedTuple):
    """Everything that was found, before any image is opened."""

    labeled: list[Group]
    test: list[Group]
    unlabeled: list[Group]
    problems: list[str]

    @property
    def groups(self) -> list[Group]:
        """All groups, in the order in which their files are decoded."""
        return [*self.labeled, *self.test, *self.unlabeled]

    @property
    def files(self) -> list[str]:
        """The files to decode."""
        return [file for group in self.groups for file in group.files]

    @property
    def stamps(self) -> list[str]:
        """What changes when any file does."""
        return [stamp for group in self.groups for stamp in group.stamps]


class FoundClasses(NamedTuple):
    """The class folders of a folder.

    Attributes:
        groups: the classes in order of their names.
        problems: a sentence about everything that cannot be used.
        refused: those of the problems that no class can be learned with.
        hidden: how many hidden entries were ignored.
    """

    groups: list[Group]
    problems: list[str]
    refused: list[str]
    hidden: int


def _find(folders: _Folders) -> _Found:
    labeled, problems, *_ = find_classes(folders.labeled)
    if not labeled:
        raise SourceError(
            f"{folders.labeled}: expected one folder of images for each class, found none"
        )
    test: list[Group] = []
    if folders.test:
        test, more, *_ = find_classes(folders.test)
        problems += more
        known = {_same(group.name) for group in labeled}
        for group in test:
            if _same(group.name) not in known:
                raise SourceError(
                    f"{shown(group.path)}: expected a class of {folders.labeled}, "
                    f"which has no '{group.name}'"
                )
    unlabeled = []
    for folder in folders.unlabeled:
        listing = list_files(folder)
        stamps = [one.stamp for one in listing.folders]
        unlabeled.append(Group(str(folder), "", listing.files, stamps))
        problems += listing.problems
        if not unlabeled[-1].files:
            problems.append(f"{folder}: a folder of unlabeled images without any")
    return _Found(labeled, test, unlabeled, problems)


def find_classes(root: Path) -> FoundClasses:
    """Return the class folders in order of their names, and what is wrong in them.

    Names that differ only in letter case or in how accents are encoded are the same name.
    """
    listing = list_files(root)
    problems, refused = listing.problems, [*listing.unlisted]
    groups: dict[str, Group] = {}
    for folder in listing.folders:
        first = Path(folder.path).relative_to(root).parts[:1]
        if not first:
            problems += [f"{shown(file)}: not in the folder of a class" for file in folder.files]
            continue
        path = str(root / first[0])
        name = unicodedata.normalize("NFC", shown(first[0]))
        group = groups.setdefault(path, Group(path, name, [], []))
        group.files.extend(folder.files)
        group.stamps.append(folder.stamp)
    classes: dict[str, Group] = {}
    for group in sorted(groups.values(), key=lambda group: (group.name, group.path)):
        twin = classes.setdefault(_same(group.name), group)
        if twin is not group:
            refused.append(f"{shown(group.path)}: the same class name as {shown(twin.path)}")
            problems.append(refused[-1])
        elif not group.files:
            problems.append(f"{shown(group.path)}: a class without images")
    return FoundClasses(list(classes.values()), problems, refused, listing.hidden)


def _arrange(
    config: StreamConfig, root: Path, found: _Found, branches: Branches | None, decoded: Decoded
) -> tuple[Contents, Selection, Selection]:
    """Make both parts of what could be decoded; a class with nothing left is left out."""
    number_of = {_same(group.name): number for number, group in enumerate(found.labeled)}
    kinds = [len(found.labeled), len(found.test), len(found.unlabeled)]
    labels = [number_of.get(_same(group.name), UNKNOWN) for group in found.groups]
    sizes = [len(group.files) for group in found.groups]
    label, kind = (
        np.repeat(values, sizes)[decoded.good] for values in (labels, np.repeat(range(3), kinds))
    )
    kept = np.unique(label[kind == _LABELED])
    problems = [*found.problems, *decoded.problems]
    for number, group in enumerate(found.labeled):
        if group.files and number not in kept:
            problems.append(f"{shown(group.path)}: a class without usable images")
    problems.sort()
    if not len(kept):
        if config.bad_images == "stop":
            _refuse_problems(problems)
        raise SourceError(f"{root}: expected images in the folders of classes, found none")
    if config.test_dir is None:
        files = found.files
        for number in kept:
            rows = np.flatnonzero((kind == _LABELED) & (label == number))
            names = [name_below(root, files[file]) for file in decoded.good[rows]]
            kind[_held_out(rows, names)] = _TEST
    new_number = np.full(len(found.labeled) + 1, UNKNOWN, dtype=np.int64)
    new_number[kept] = np.arange(len(kept))
    label = new_number[label]  # the last entry is for UNKNOWN
    train, test = kind != _TEST, (kind == _TEST) & (label != UNKNOWN)
    class_names = tuple(found.labeled[number].name for number in kept)
    contents = Contents(
        name="folder",
        class_names=class_names,
        tree=None if branches is None else class_tree(branches, class_names),
        label_fraction=1.0 if config.unlabeled_dirs else 0.2,
        problems=tuple(problems),
    )
    return contents, (decoded.good[train], label[train]), (decoded.good[test], label[test])


def _held_out(rows: NDArray[np.intp], names: Sequence[str]) -> NDArray[np.intp]:
    """Choose a fifth of a class's images, at least one of two, by the hashes of their names."""
    if len(rows) < 2:
        return rows[:0]
    count = max(1, round(len(rows) / HELD_OUT))
    hashes = [hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest() for name in names]
    return rows[sorted(range(len(rows)), key=hashes.__getitem__)[:count]]


def _refuse_problems(problems: Sequence[str]) -> None:
    """Refuse files that cannot be used."""
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise SourceError(f"{problems[0]}{more}; leave such files out with --bad-images skip")


def _same(name: str) -> str:
    """Return what two names have in common that count as the same."""
    return unicodedata.normalize("NFC", name.casefold())
