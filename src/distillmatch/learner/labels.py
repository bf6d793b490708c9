"""Labels: strings or whole numbers, the same kind in every task, numbered as they come."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distillmatch.errors import LearnerError
from distillmatch.learner.explanation import Label
from distillmatch.learner.inputs import Items, array_of, is_folder, open_images
from distillmatch.sources.folder import find_classes
from distillmatch.sources.images import ImageFile
from distillmatch.sources.walk import shown

UNKNOWN = "unknown"
"""What is answered for an image that looks like no class; no class may be called so."""
_UNWRITABLE = re.compile(r"[\0\ud800-\udfff]")
"""Zero bytes, which NumPy drops at the end of text, and halves of characters."""


def labeled_images(images: Any, labels: Any) -> tuple[Items, list[Label]]:
    """Return opened images with a label each, of arrays or of a folder with a folder a class."""
    if labels is None:
        if not is_folder(images):
            raise LearnerError(
                "labels must be given, unless images is a folder with one folder for each class"
            )
        return class_folders(Path(images).expanduser())
    if is_folder(images):
        raise LearnerError("labels cannot be given beside a folder, whose folders name the classes")
    items, found = open_images(images), _labels(labels)
    if len(items) != len(found):
        raise LearnerError(f"there are {len(items)} images, but {len(found)} labels")
    return items, found


def class_folders(root: Path) -> tuple[list[ImageFile], list[Label]]:
    """Return every image of a folder with one folder a class, and its label."""
    if not root.is_dir():
        raise LearnerError(f"{shown(root)}: expected a folder with one folder for each class there")
    groups, problems = find_classes(root.absolute())
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise LearnerError(f"{problems[0]}{more}")
    if not groups:
        raise LearnerError(
            f"{shown(root)}: expected one folder of images for each class, found none"
        )
    files = [ImageFile.at(path) for group in groups for path in group.files]
    labels: list[Label] = [group.name for group in groups for _ in group.files]
    _refuse_unknown(labels)
    return files, labels


def new_classes(known: Sequence[Label], labels: Sequence[Label]) -> list[Label]:
    """Return the labels that are not known yet, in order; refuse the other kind of label."""
    kinds = {type(label) for label in (*known, *labels)}
    if len(kinds) > 1:
        raise LearnerError(
            "labels must all be strings or all be whole numbers, in every task; here "
            f"{_example(known, labels, str)} meets {_example(known, labels, int)}"
        )
    # One kind, so they can be ordered: the order of a task's images decides nothing.
    return sorted(set(labels) - set(known))


def slots_of(known: Sequence[Label], labels: Sequence[Label]) -> NDArray[np.int64]:
    """Return the place of each label among the known ones, -1 where it has none."""
    place = {label: number for number, label in enumerate(known)}
    return np.array([place.get(label, -1) for label in labels], dtype=np.int64)


def label_array(labels: Sequence[Label]) -> NDArray[Any]:
    """Return labels as an array, of text or of whole numbers."""
    return np.array(labels, dtype=np.int64 if labels and isinstance(labels[0], int) else np.str_)


def _labels(given: Any) -> list[Label]:
    if isinstance(given, torch.Tensor):
        given = array_of(given, "labels")
    array = (
        np.asarray(given, dtype=object) if isinstance(given, list | tuple) else np.asarray(given)
    )
    if array.ndim != 1:
        raise LearnerError(
            f"labels must be a list of one label an image, not {array.ndim}-dimensional"
        )
    labels = [_label(one) for one in array.tolist()]
    _refuse_unknown(labels)
    return labels


def _label(one: Any) -> Label:
    plain = one.item() if hasattr(one, "item") else one
    if isinstance(plain, str):
        if _UNWRITABLE.search(plain):
            raise LearnerError(f"a label must be text that can be written down, not {plain!r:.60}")
        return str(plain)
    if isinstance(plain, float) and not plain.is_integer():
        raise LearnerError(
            f"labels must be strings or whole numbers, not continuous ones such as {plain!r}"
        )
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise LearnerError(f"a label must be a string or a whole number, not {plain!r}")
    if not -(2**63) <= plain < 2**63:
        raise LearnerError(
            f"a label that is a whole number must lie between -2^63 and 2^63 - 1, not {int(plain)}"
        )
    return int(plain)


def _refuse_unknown(labels: Sequence[Label]) -> None:
    if UNKNOWN in labels:
        raise LearnerError(f"no class may be called '{UNKNOWN}': that is the answer to strangers")


def _example(known: Sequence[Label], labels: Sequence[Label], kind: type) -> str:
    return next(repr(label) for label in (*known, *labels) if type(label) is kind)
