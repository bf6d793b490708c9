"""A data set: images, labels, class names, and the class tree if there is one."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distillmatch.errors import SourceError, kind_of

UNKNOWN = -1
"""The label of a training image that nobody has labeled."""
PIECE_BYTES = 12 * 2**20
"""Bytes read at once of images that may not fit in memory."""


@dataclass(frozen=True, eq=False, repr=False)
class Part:
    """The training or the test part of a data set.

    Attributes:
        images: uint8 of shape (count, side, side, 3), possibly mapped from disk.
        labels: int64 of shape (count,), `UNKNOWN` for an image that nobody has labeled.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        for name, given in (("images", images), ("labels", labels)):
            if not isinstance(given, np.ndarray):
                raise SourceError(f"{name} must be a NumPy array, not {kind_of(given)}")
        is_square = images.ndim == 4 and images.shape[1] == images.shape[2]
        if images.dtype != np.uint8 or not is_square or images.shape[3] != 3:
            raise SourceError(
                "images must be uint8 of shape (count, side, side, 3), "
                f"not {images.dtype} of shape {images.shape}"
            )
        if labels.dtype != np.int64 or labels.shape != images.shape[:1]:
            raise SourceError(
                f"labels must be int64, one for each of the {len(images)} images, "
                f"not {labels.dtype} of shape {labels.shape}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Part({len(self):,} images of {self.images.shape[1]} px)"


class MappedRows:
    """Rows of an array of images that stay on disk until they are indexed.

    It replaces an array where a copy of all its images might not fit in memory.
    """

    def __init__(self, images: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        self.images = images
        self.rows = rows
        self.shape: tuple[int, ...] = (len(rows), *images.shape[1:])
        self.nbytes = int(np.prod(self.shape))

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"MappedRows({len(self):,} images of {self.images.shape[1]} px)"

    def __getitem__(self, chosen: Any) -> NDArray[np.uint8]:
        return np.asarray(self.images[self.rows[chosen]])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or np.uint8, copy=False)


ImageRows = NDArray[np.uint8] | MappedRows
"""Images in memory, or images that are read when they are indexed."""


def choose_rows(images: NDArray[np.uint8], rows: NDArray[np.int64]) -> ImageRows:
    """Return a copy of some images, or, if they are mapped from disk, rows to read later."""
    return MappedRows(images, rows) if isinstance(images, np.memmap) else images[rows]


@dataclass(frozen=True)
class ClassTree:
    """The parent of each class and the super-class of each parent, by number.

    Attributes:
        parent_of_class: the number of each class's parent.
        super_class_of_parent: the number of each parent's super-class.
        parent_names: one name for each parent.
        super_class_names: one name for each super-class.
    """

    parent_of_class: tuple[int, ...]
    super_class_of_parent: tuple[int, ...]
    parent_names: tuple[str, ...]
    super_class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        parents, above = set(range(len(self.parent_names))), self.super_class_of_parent
        whole = set(self.parent_of_class) == parents and len(above) == len(parents)
        if not whole or set(above) != set(range(len(self.super_class_names))):
            raise SourceError(
                "the class tree must give every parent at least one class and one super-class, "
                "and every super-class at least one parent"
            )
        for key in ("parent_names", "super_class_names"):
            _check_texts(f"{key} of the class tree", getattr(self, key))

    @classmethod
    def of_names(cls, parents: Sequence[str], super_classes: Mapping[str, str]) -> "ClassTree":
        """Make a tree from names.

        `parents` has the parent of each class. `super_classes` has the super-class of each parent,
        in the order in which both are to be numbered; a parent without a class is left out.
        """
        used = {parent: one for parent, one in super_classes.items() if parent in parents}
        names, tops = list(used), list(dict.fromkeys(used.values()))
        return cls(
            parent_of_class=tuple(map(names.index, parents)),
            super_class_of_parent=tuple(map(tops.index, used.values())),
            parent_names=tuple(names),
            super_class_names=tuple(tops),
        )

    def classes_of_parent(self, parent: int) -> tuple[int, ...]:
        """Return the classes under one parent."""
        return tuple(c for c, of in enumerate(self.parent_of_class) if of == parent)

    def parents_of_super_class(self, super_class: int) -> tuple[int, ...]:
        """Return the parents under one super-class."""
        return tuple(p for p, of in enumerate(self.super_class_of_parent) if of == super_class)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A data set as every source returns it.

    Attributes:
        name: what messages call the source.
        train: the training part; a stream decides which of its labels a learner may see.
        test: the test part, in which every image has a label.
        class_names: one name for each class number.
        tree: parents and super-classes of the classes, or None.
        label_fraction: labeled share of each class unless the configuration names one.
        problems: a sentence for each file that was left out.
        known_fingerprint: the fingerprint that the cache has.
    """

    name: str
    train: Part
    test: Part
    class_names: tuple[str, ...]
    tree: ClassTree | None = None
    label_fraction: float = 0.2
    problems: tuple[str, ...] = ()
    known_fingerprint: str | None = None

    def __post_init__(self) -> None:
        name, share, classes = self.name, self.label_fraction, len(self.class_names)
        _check_texts("the name of a data set", (name,))
        _check_texts(f"{name}: class_names", self.class_names)
        _check_texts(f"{name}: problems", self.problems, written=False)
        if not isinstance(share, Real) or not 0 < share <= 1:
            problem = f"label_fraction must be a number above 0 and at most 1, not {share!r}"
        elif len(set(self.class_names)) != classes:
            problem = "two classes have the same name"
        elif any(
            len(part) and not lowest <= part.labels.min() <= part.labels.max() < classes
            for part, lowest in ((self.train, UNKNOWN), (self.test, 0))
        ):
            problem = f"a label is not one of the {classes} classes"
        elif len(self.test) and self.test.images.shape[1:] != self.train.images.shape[1:]:
            problem = "training and test images differ in size"
        elif self.tree is not None and len(self.tree.parent_of_class) != classes:
            problem = f"the tree must have the {classes} classes of the data"
        else:
            return
        raise SourceError(f"{name}: {problem}")

    def __repr__(self) -> str:
        return (
            f"Dataset('{self.name}': {len(self.class_names)} classes, {len(self.train):,} training "
            f"and {len(self.test):,} test images of {self.image_size} px)"
        )

    @property
    def image_size(self) -> int:
        """The side of the images in pixels."""
        return int(self.train.images.shape[1])

    @property
    def image_bytes(self) -> int:
        """The bytes that one stored image takes."""
        return int(np.prod(self.train.images.shape[1:]))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of images, labels, names and tree, on which a stream's index lists depend."""
        return self.known_fingerprint or fingerprint(
            (self.train, self.test), self.class_names, self.tree
        )


def _check_texts(what: str, values: object, written: bool = True) -> None:
    """Check that the values are texts, and that those `written` to files can be UTF-8."""
    if isinstance(values, str) or not isinstance(values, Collection):
        raise SourceError(f"{what} must be a tuple of texts, not {values!r}")
    for value in values:
        if not isinstance(value, str):
            raise SourceError(f"{what} must be text, not {value!r} ({type(value).__name__})")
        if written and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise SourceError(f"{what} must be text that can be written in UTF-8, not {value!r}")


def verify(dataset: Dataset) -> None:
    """Hash the images of a cache again, and refuse changed ones.

    Commands that only show a stream trust the cache; those that train or load a stream do not.
    """
    known = dataset.known_fingerprint
    if known is None:
        return
    found = fingerprint((dataset.train, dataset.test), dataset.class_names, dataset.tree)
    if found != known:
        raise SourceError(
            f"the cached images of source '{dataset.name}' have changed since they were decoded "
            f"(fingerprint {found}, expected {known}): delete the cache to have them decoded again"
        )


def fingerprint(parts: Sequence[Part], class_names: Sequence[str], tree: ClassTree | None) -> str:
    """Hash images, labels, class names and tree; mapped images stay on disk."""
    digest = hashlib.blake2b(repr((tuple(class_names), tree)).encode(), digest_size=16)
    for part in parts:
        digest.update(repr(part.images.shape).encode())
        digest.update(np.ascontiguousarray(part.labels, dtype="<i8").data)
        count = max(1, PIECE_BYTES // int(np.prod(part.images.shape[1:])))
        for start in range(0, len(part), count):
            digest.update(np.ascontiguousarray(part.images[start : start + count]).data)
    return digest.hexdigest()
