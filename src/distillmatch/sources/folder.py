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
from typing import Any, NamedTuple

from distillmatch.config import StreamConfig, read_yaml
from distillmatch.errors import ConfigError, SourceError, first_of
from distillmatch.sources.cache import Plan, cache_key, load_cached
from distillmatch.sources.dataset import UNKNOWN, ClassTree, Dataset
from distillmatch.sources.registry import CheckedSource
from distillmatch.sources.walk import Folder, list_files, name_below, shown

Tree = tuple[dict[str, str], dict[str, str]]
"""The parent of each class and the super-class of each parent, in the order of a file."""

SIDE = 32
HELD_OUT = 5
"""One image in so many becomes a test image where there is no test folder."""


class Group(NamedTuple):
    """The files of one class, or of one folder of unlabeled images."""

    path: str
    name: str
    folders: list[Folder]

    @property
    def files(self) -> list[str]:
        """The paths of all files, folder after folder."""
        return [file for folder in self.folders for file in folder.files]


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


class _Found(NamedTuple):
    """Everything that was found, before any image is opened."""

    labeled: list[Group]
    test: list[Group] | None
    unlabeled: list[Group]
    problems: list[str]


def _load(config: StreamConfig) -> Dataset:
    """Load a user's own images, from the cache if nothing has changed."""
    root, test_root, unlabeled = folders = _folders(config)
    found, side, tree = _find(root, test_root, unlabeled), config.image_size or SIDE, None
    if config.tree is not None:
        tree = _read_tree(config.tree.expanduser(), [group.name for group in found.labeled])
    groups = (*found.labeled, *(found.test or ()), *found.unlabeled)
    stamps = [folder.stamp for group in groups for folder in group.folders]
    dataset = load_cached(
        config,
        f"folder-{cache_key(*map(str, folders), side, tree is not None)}",
        cache_key(side, tree, *stamps),
        side,
        partial(_plan, root, found, tree),
        "decoding the images into the cache",
    )
    left_out = [g for g in found.labeled if g.files and g.name not in dataset.class_names]
    problems = [*found.problems, *dataset.problems]
    problems += [f"{shown(g.path)}: a class without usable training images" for g in left_out]
    problems.sort()
    if problems and config.bad_images == "stop":
        raise SourceError(f"{first_of(problems)}; leave such files out with --bad-images skip")
    if not dataset.class_names:
        raise SourceError(f"{root}: expected images in the folders of classes, found none")
    return replace(dataset, problems=tuple(problems))


def _folders(config: StreamConfig) -> tuple[Path, Path | None, tuple[Path, ...]]:
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
    unlabeled = tuple(path for key, path in paths if key == "unlabeled_dirs")
    return paths[0][1], dict(paths).get("test_dir"), unlabeled


load = CheckedSource(_load, _folders)


def _find(root: Path, test_root: Path | None, unlabeled_roots: Sequence[Path]) -> _Found:
    labeled, problems, *_ = find_classes(root)
    if not labeled:
        raise SourceError(f"{root}: expected one folder of images for each class, found none")
    test = None
    if test_root:
        test, more, *_ = find_classes(test_root)
        problems += more
        known = {_same(group.name) for group in labeled}
        for group in test:
            if _same(group.name) not in known:
                raise SourceError(
                    f"{shown(group.path)}: expected a class of {root}, which has no '{group.name}'"
                )
    unlabeled = []
    for folder in unlabeled_roots:
        listing = list_files(folder)
        unlabeled.append(Group(str(folder), "", listing.folders))
        problems += listing.problems
        if not listing.files:
            problems.append(f"{folder}: a folder of unlabeled images without any")
    return _Found(labeled, test, unlabeled, problems)


def find_classes(root: Path) -> FoundClasses:
    """Return the class folders in order of their names, and the problems in them.

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
        groups.setdefault(path, Group(path, name, [])).folders.append(folder)
    classes: dict[str, Group] = {}
    for group in sorted(groups.values(), key=lambda group: (group.name, group.path)):
        twin = classes.setdefault(_same(group.name), group)
        if twin is not group:
            refused.append(f"{shown(group.path)}: the same class name as {shown(twin.path)}")
            problems.append(refused[-1])
        elif not group.files:
            problems.append(f"{shown(group.path)}: a class without images")
    return FoundClasses(list(classes.values()), problems, refused, listing.hidden)


def _plan(root: Path, found: _Found, tree: Tree | None) -> Plan:
    """Divide the files; a class without a usable training image is left out."""
    number_of = {_same(group.name): number for number, group in enumerate(found.labeled)}
    train: list[tuple[str, int]] = []
    test: list[tuple[str, int]] = []
    for group in found.test or ():
        test += [(file, number_of[_same(group.name)]) for file in group.files]
    for number, group in enumerate(found.labeled):
        held_out = _held_out(group.files, root) if found.test is None else set()
        for file in group.files:
            (test if file in held_out else train).append((file, number))
    for group in found.unlabeled:
        train += [(file, UNKNOWN) for file in group.files]

    return Plan(
        name="folder",
        files=[*train, *test],
        train=len(train),
        class_names=[group.name for group in found.labeled],
        tree=partial(_number, tree),
        label_fraction=1.0 if found.unlabeled else 0.2,
    )


def _held_out(files: Sequence[str], root: Path) -> set[str]:
    """Choose a fifth of a class's files, at least one of two, by the hashes of their names."""
    if len(files) < 2:
        return set()

    def hashed(file: str) -> bytes:
        return hashlib.sha256(name_below(root, file).encode("utf-8", "surrogateescape")).digest()

    return set(sorted(files, key=hashed)[: max(1, round(len(files) / HELD_OUT))])


def _read_tree(path: Path, class_names: Sequence[str]) -> Tree:
    """Read a YAML file of super-classes, their parents, and their classes; check it."""
    found: Any = read_yaml(path)
    is_tree = isinstance(found, dict) and all(
        isinstance(parents, dict) and all(isinstance(names, list) for names in parents.values())
        for parents in found.values()
    )
    if not is_tree:
        raise ConfigError(
            f"{path}: expected super-classes, in each its parents, in each a list of classes, "
            f"found {found!r}"
        )
    parent_of: dict[str, str] = {}
    super_class_of: dict[str, str] = {}
    for one, parents in found.items():
        super_class = _text(path, one)
        for parent, names in ((_text(path, parent), names) for parent, names in parents.items()):
            if super_class_of.setdefault(parent, super_class) != super_class:
                raise ConfigError(
                    f"{path}: parent '{parent}' must have one super-class, "
                    f"not both '{super_class_of[parent]}' and '{super_class}'"
                )
            for name in (_text(path, name) for name in names):
                if name in parent_of:
                    raise ConfigError(
                        f"{path}: class '{name}' must stand in the tree once, not twice"
                    )
                parent_of[name] = parent
    for name in (*parent_of, *class_names):
        if name not in class_names:
            raise ConfigError(f"{path}: class '{name}' has no folder of images")
        if name not in parent_of:
            raise ConfigError(f"{path}: expected every class in the tree, '{name}' is not in it")
    return parent_of, super_class_of


def _number(tree: Tree | None, class_names: Sequence[str]) -> ClassTree | None:
    if tree is None:
        return None
    parent_of, super_class_of = tree
    return ClassTree.of_names([parent_of[name] for name in class_names], super_class_of)


def _text(path: Path, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ConfigError(f"{path}: expected a name, found {value!r}; write it in quotes")
    return unicodedata.normalize("NFC", str(value))


def _same(name: str) -> str:
    """Return the form of a name in which equal names are compared."""
    return unicodedata.normalize("NFC", name.casefold())
