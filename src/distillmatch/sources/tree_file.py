"""A class tree that a user wrote: a YAML file, super-class to parent to list of classes."""

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from distillmatch.config import read_yaml
from distillmatch.errors import ConfigError
from distillmatch.sources.dataset import ClassTree

Branches = tuple[tuple[str, str, str], ...]
"""One (super-class, parent, class) for each class, in the order of the file."""


def read_branches(path: Path) -> Branches:
    """Read the file, and refuse what is no tree: a class twice, a parent of two super-classes."""
    branches = tuple(_branches(path))
    super_class_of: dict[str, str] = {}
    seen: set[str] = set()
    for super_class, parent, name in branches:
        if super_class_of.setdefault(parent, super_class) != super_class:
            raise ConfigError(
                f"{path}: parent '{parent}' must have one super-class, "
                f"not both '{super_class_of[parent]}' and '{super_class}'"
            )
        if name in seen:
            raise ConfigError(f"{path}: class '{name}' must stand in the tree once, not twice")
        seen.add(name)
    return branches


def check_branches(branches: Branches, class_names: Sequence[str], path: Path) -> None:
    """Refuse a tree that names other classes than there are."""
    in_tree = [name for _, _, name in branches]
    for name in in_tree:
        if name not in class_names:
            raise ConfigError(f"{path}: class '{name}' has no folder of images")
    for name in class_names:
        if name not in in_tree:
            raise ConfigError(f"{path}: expected every class in the tree, '{name}' is not in it")


def class_tree(branches: Branches, class_names: Sequence[str]) -> ClassTree:
    """Number the tree of these classes; parents are numbered in the order of the file."""
    used = [branch for branch in branches if branch[2] in class_names]
    parent_of = {name: parent for _, parent, name in used}
    super_class_of = {parent: super_class for super_class, parent, _ in used}
    parents = list(super_class_of)
    super_classes = list(dict.fromkeys(super_class_of.values()))
    return ClassTree(
        parent_of_class=tuple(parents.index(parent_of[name]) for name in class_names),
        super_class_of_parent=tuple(super_classes.index(super_class_of[p]) for p in parents),
        parent_names=tuple(parents),
        super_class_names=tuple(super_classes),
    )


def _branches(path: Path) -> Iterator[tuple[str, str, str]]:
    super_classes = read_yaml(path)
    for super_class, parents in _items(super_classes, path, "super-class to parents"):
        for parent, names in _items(parents, path, f"parent to classes under '{super_class}'"):
            if not isinstance(names, list) or not names:
                raise ConfigError(
                    f"{path}: expected a list of classes under '{parent}', found {names!r}"
                )
            for name in names:
                yield super_class, parent, _text(name, path)


def _items(value: object, path: Path, of_what: str) -> Iterator[tuple[str, object]]:
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"{path}: expected a mapping of {of_what}, found {value!r}")
    for key, below in value.items():
        yield _text(key, path), below


def _text(value: object, path: Path) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ConfigError(f"{path}: expected a name, found {value!r}; write it in quotes")
    return unicodedata.normalize("NFC", str(value))
