"""Own images: `folder/<class>/*` with labels, a test folder, folders of unlabeled images.

Without a test folder a fifth of every class is held out as the test part: the files whose names
have the smallest hashes, so the choice depends on no seed and stays when images are added. Whatever
cannot be used is a problem that names its path: it ends the load, or it is left out.
"""

import hashlib
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, SourceError, first_of
from distillmatch.sources.cache import Plan, cache_key, load_cached
from distillmatch.sources.dataset import UNKNOWN, Dataset
from distillmatch.sources.registry import CheckedSource
from distillmatch.sources.walk import Listing, list_files, name_below, shown

SIDE = 32
HELD_OUT = 5
"""One image in so many becomes a test image where there is no test folder."""


class Group(NamedTuple):
    """The files of one class."""

    path: str
    name: str
    files: list[str]


class FoundClasses(NamedTuple):
    """The class folders of a folder.

    Attributes:
        groups: the classes in order of their names.
        problems: a sentence about everything that cannot be used.
        refused: the problems that no class can be learned with.
        hidden: how many hidden entries were ignored.
    """

    groups: list[Group]
    problems: list[str]
    refused: list[str]
    hidden: int


def _load(config: StreamConfig) -> Dataset:
    """Load a user's own images, from the cache if nothing has changed."""
    folders = _folders(config)
    root, test_root = folders["data_dir"][0], next(iter(folders["test_dir"]), None)
    listings = {path: list_files(path) for paths in folders.values() for path in paths}
    labeled, problems, *_ = classes_in(root, listings[root])
    if not labeled:
        raise SourceError(f"{root}: expected one folder of images for each class, found none")
    test = None
    if test_root is not None:
        test, more, *_ = classes_in(test_root, listings[test_root])
        problems += more
        known = {_same(group.name) for group in labeled}
        for group in test:
            if _same(group.name) not in known:
                raise SourceError(
                    f"{shown(group.path)}: expected a class of {root}, which has no '{group.name}'"
                )
    unlabeled: list[str] = []
    for path in folders["unlabeled_dirs"]:
        unlabeled += listings[path].files
        problems += listings[path].problems
        if not listings[path].files:
            problems.append(f"{path}: a folder of unlabeled images without any")
    side = config.image_size or SIDE
    dataset = load_cached(
        config,
        f"folder-{cache_key(repr(folders), side)}",
        cache_key(side, *(listing.stamp for listing in listings.values())),
        side,
        partial(_plan, root, labeled, test, unlabeled),
        "decoding the images into the cache",
    )
    left_out = [g for g in labeled if g.files and g.name not in dataset.class_names]
    problems += dataset.problems
    problems += [f"{shown(g.path)}: a class without usable training images" for g in left_out]
    problems.sort()
    if problems and config.bad_images == "stop":
        raise SourceError(f"{first_of(problems)}; leave such files out with --bad-images skip")
    if not dataset.class_names:
        raise SourceError(f"{root}: expected images in the folders of classes, found none")
    return replace(dataset, problems=tuple(problems))


def _folders(config: StreamConfig) -> dict[str, tuple[Path, ...]]:
    """Return the configured folders by key; refuse missing ones, and one inside another."""
    if config.data_dir is None:
        raise ConfigError(
            "data_dir must be given with source 'folder': a folder with one folder a class"
        )
    given: dict[str, Sequence[Path | None]] = {
        "data_dir": [config.data_dir],
        "test_dir": [config.test_dir],
        "unlabeled_dirs": config.unlabeled_dirs,
    }
    folders = {
        key: tuple(path.expanduser().absolute() for path in paths if path)
        for key, paths in given.items()
    }
    pairs = [(key, path) for key, paths in folders.items() for path in paths]
    for key, path in pairs:
        try:
            os.scandir(path).close()
        except OSError as error:
            reason = error.strerror or error
            raise SourceError(f"{path}: expected the folder given as {key}: {reason}") from None
    for (key, one), (other_key, other) in combinations(pairs, 2):
        here, there = one.resolve(), other.resolve()
        if here.is_relative_to(there) or there.is_relative_to(here):
            raise ConfigError(
                f"{other_key} must lie apart from {key}, or images would count twice: "
                f"{other} and {one}"
            )
    return folders


load = CheckedSource(_load, _folders)


def find_classes(root: Path) -> FoundClasses:
    """Return the class folders in order of their names, and the problems in them.

    Names that differ only in letter case or in how accents are encoded are the same name.
    """
    return classes_in(root, list_files(root))


def classes_in(root: Path, listing: Listing) -> FoundClasses:
    """Return the class folders of a folder that was listed."""
    problems, refused = listing.problems, [*listing.unlisted]
    groups: dict[str, Group] = {}
    for path in listing.folders[1:]:
        first = Path(path).relative_to(root).parts[0]
        name = unicodedata.normalize("NFC", shown(first))
        groups.setdefault(first, Group(str(root / first), name, []))
    for file in listing.files:
        first, *below = Path(file).relative_to(root).parts
        if below:
            groups[first].files.append(file)
        else:
            problems.append(f"{shown(file)}: not in the folder of a class")
    classes: dict[str, Group] = {}
    for group in sorted(groups.values(), key=lambda group: (group.name, group.path)):
        twin = classes.setdefault(_same(group.name), group)
        if twin is not group:
            refused.append(f"{shown(group.path)}: the same class name as {shown(twin.path)}")
            problems.append(refused[-1])
        elif not group.files:
            problems.append(f"{shown(group.path)}: a class without images")
    return FoundClasses(list(classes.values()), problems, refused, listing.hidden)


def _plan(
    root: Path,
    labeled: Sequence[Group],
    test_groups: Sequence[Group] | None,
    unlabeled: Sequence[str],
) -> Plan:
    """Divide the files; a class without a usable training image is left out."""
    number_of = {_same(group.name): number for number, group in enumerate(labeled)}
    train: list[tuple[str, int]] = []
    test: list[tuple[str, int]] = []
    for group in test_groups or ():
        test += [(file, number_of[_same(group.name)]) for file in group.files]
    for number, group in enumerate(labeled):
        held_out = _held_out(group.files, root) if test_groups is None else set()
        for file in group.files:
            (test if file in held_out else train).append((file, number))
    train += [(file, UNKNOWN) for file in unlabeled]
    names = [group.name for group in labeled]
    share = 1.0 if unlabeled else 0.2
    return Plan("folder", [*train, *test], len(train), names, share)


def _held_out(files: Sequence[str], root: Path) -> set[str]:
    """Choose a fifth of a class's files, at least one of two, by the hashes of their names."""

    def hashed(file: str) -> bytes:
        return hashlib.sha256(name_below(root, file).encode("utf-8", "surrogateescape")).digest()

    count = max(1, round(len(files) / HELD_OUT)) if len(files) > 1 else 0
    return set(sorted(files, key=hashed)[:count])


def _same(name: str) -> str:
    """Return the form of a name in which equal names are compared."""
    return unicodedata.normalize("NFC", name.casefold())
