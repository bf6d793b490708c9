"""A class tree that a user wrote: a YAML file, super-class to parent to list of classes."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distillmatch.config import read_yaml
from distillmatch.errors import ConfigError
from distillmatch.sources.dataset import ClassTree

Branches = tuple[tuple[str, str, str], ...]
"""One (super-class, parent, class) for each class, in the order of the file."""


def read_branches(path: Path, class_names: Sequence[str]) -> Branches:
    """Read the file, and refuse what is no tree of these classes."""
    found: Any = read_yaml(path)
    try:
        branches = tuple(
            (_name(super_class, path), _name(parent, path), _name(name, path))
            for super_class, parents in found.items()
            for parent, names in parents.items()
            for name in _list(names)
        )
    except (AttributeError, TypeError):
        raise ConfigError(
            f"{path}: expected super-classes, in each its parents, in each a list of classes, "
            f"found {found!r}"
        ) from None
    super_class_of: dict[str, str] = {}
    in_tree: set[str] = set()
    for super_class, parent, name in branches:
        if super_class_of.setdefault(parent, super_class) != super_class:
            raise ConfigError(
                f"{path}: parent '{parent}' must have one super-class, "
                f"not both '{super_class_of[parent]}' and '{super_class}'"
            )
        if name in in_tree:
            raise ConfigError(f"{path}: class '{name}' must stand in the tree once, not twice")
        if name not in class_names:
            raise ConfigError(f"{path}: class '{name}' has no folder of images")
        in_tree.add(name)
    for name in class_names:
        if name not in in_tree:
            raise ConfigError(f"{path}: expected every class in the tree, '{name}' is not in it")
    return branches


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


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _name(value: object, path: Path) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ConfigError(f"{path}: expected a name, found {value!r}; write it in quotes")
    return unicodedata.normalize("NFC", str(value))
