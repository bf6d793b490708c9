"""Labels: strings or whole numbers, the same kind in every task, numbered as they come."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from distillmatch.errors import LearnerError
from distillmatch.learner.explanation import Label
from distillmatch.learner.inputs import Items, Reader, array_of, open_images, read_all
from distillmatch.sources.folder import find_classes
from distillmatch.sources.images import ImageFile, problem_with
from distillmatch.sources.walk import shown

UNKNOWN = "unknown"
"""What is answered for an image that looks like no class; no class may be called so."""


class Labeled(NamedTuple):
    """Opened images with a label each.

    Attributes:
        items: the images, yet to be read.
        labels: the label of each.
        found: they were found in folders, so what cannot be read is left out and counted; what a
            person named is refused.
        problems: a sentence about everything that was left out.
        hidden: how many hidden files and folders were ignored.
        contents: the SHA-256 of each file, once `with_contents` has read them.
    """

    items: Items
    labels: list[Label]
    found: bool = False
    problems: tuple[str, ...] = ()
    hidden: int = 0
    contents: tuple[str, ...] = ()

    def part(self, places: Sequence[int]) -> "Labeled":
        """Return some of the images by number, and what was left out before."""
        return self._replace(
            items=[self.items[n] for n in places],
            labels=[self.labels[n] for n in places],
            contents=tuple(self.contents[n] for n in places) if self.contents else (),
        )

    def with_contents(self) -> "Labeled":
        """Return the same with the content of each image known, if all are files."""
        if self.contents or not all(type(item) is ImageFile for item in self.items):
            return self
        return self._replace(contents=tuple(map(_content_of, self.items)))

    def digests(self) -> NDArray[np.int64]:
        """Return a number for each image file and its label; none for images without a file."""
        known = self.with_contents()
        pairs = zip(known.labels, known.contents, strict=False)
        return np.array([_digest(label, content) for label, content in pairs], np.int64)


def labeled_images(images: Any, labels: Any) -> Labeled:
    """Return opened images with a label each, of arrays or of a folder with a folder a class."""
    if isinstance(images, Labeled):
        return images
    path = Path(images).expanduser() if isinstance(images, str | Path) else None
    if labels is None:
        if path is None or path.is_file():
            raise LearnerError(
                "labels must be given, unless images is a folder with one folder for each class"
            )
        return class_folders(path)
    if path is not None and path.is_dir():
        raise LearnerError("labels cannot be given beside a folder, whose folders name the classes")
    items, found = open_images(images), labels_of(labels)
    if len(items) != len(found):
        raise LearnerError(f"there are {len(items)} images, but {len(found)} labels")
    return Labeled(items, found)


def class_folders(root: Path, *, may_lack: bool = False) -> Labeled:
    """Return every image of a folder with one folder a class, and its label.

    What is no image is left out, except that a class without any is refused unless it `may_lack`
    them.
    """
    if not root.is_dir():
        raise LearnerError(f"{shown(root)}: expected a folder with one folder for each class there")
    groups, problems, refused, hidden = find_classes(root)
    if refused:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise LearnerError(f"{refused[0]}{more}")
    if not groups:
        raise LearnerError(
            f"{shown(root)}: expected one folder of images for each class, found none"
        )
    files: list[ImageFile] = []
    labels: list[Label] = []
    for group in groups:
        strays: list[str] = []
        for file in map(ImageFile.at, group.files):
            problem = problem_with(file)
            if problem is None:
                files.append(file)
                labels.append(group.name)
            else:
                strays.append(f"{file.where}: {problem}")
        if len(strays) == len(group.files) and not may_lack:
            raise _no_image(shown(group.path), strays)
        problems += strays
    if not files:
        raise _no_image(shown(root), problems)
    _refuse_unknown(labels)
    return Labeled(files, labels, True, tuple(problems), hidden)


def read_labeled(
    given: Labeled, reader: Reader, what: str = "images"
) -> tuple[NDArray[Any], Labeled]:
    """Return the rows of the images that can be read, and what is left of what was given.

    A class of which none can be read is refused.
    """
    if not given.found:
        return read_all(given.items, reader, what), given
    rows, problems = reader.read(given.items, what)
    left = given.part([number for number in range(len(given.items)) if number not in problems])
    for label in dict.fromkeys(given.labels):
        if label not in left.labels:
            wrong = [said for number, said in problems.items() if given.labels[number] == label]
            raise _no_image(f"class '{label}'", wrong)
    return rows, left._replace(problems=(*given.problems, *problems.values()))


def _no_image(where: str, problems: Sequence[str]) -> LearnerError:
    """Say that a place has no image that can be read."""
    if not problems:
        return LearnerError(f"{where}: a class without images")
    came = "one file" if len(problems) == 1 else f"{len(problems)} files"
    return LearnerError(
        f"{where}: expected an image, found {came} that cannot be read ({problems[0]})"
    )


def _content_of(file: ImageFile) -> str:
    with file.open() as opened:
        return hashlib.sha256(opened.read()).hexdigest()


def _digest(label: Label, content: str) -> int:
    labeled = repr((label, content)).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(labeled, digest_size=8).digest(), "little", signed=True)


def new_classes(known: Sequence[Label], labels: Sequence[Label]) -> list[Label]:
    """Return the labels that are not known yet, in order; refuse the other kind of label."""
    first_of = {type(label): label for label in reversed((*known, *labels))}
    if len(first_of) > 1:
        raise LearnerError(
            "labels must all be strings or all be whole numbers, in every task; here "
            f"{first_of[str]!r} meets {first_of[int]!r}"
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


def labels_of(given: Any) -> list[Label]:
    """Return what was given as labels, one an image, or refuse what no label can be."""
    plain = isinstance(given, list | tuple)
    array = np.asarray(given, dtype=object) if plain else array_of(given)
    if array.ndim != 1:
        raise LearnerError(
            f"labels must be a list of one label an image, not {array.ndim}-dimensional"
        )
    labels = [_label(one) for one in array.tolist()]
    _refuse_unknown(labels)
    return labels


def _label(one: Any) -> Label:
    plain = one.item() if isinstance(one, np.generic | torch.Tensor) else one
    if isinstance(plain, str):
        return str(plain)
    is_whole = isinstance(plain, int) or (isinstance(plain, float) and plain.is_integer())
    if is_whole and not isinstance(plain, bool) and -(2**63) <= plain < 2**63:
        return int(plain)
    raise LearnerError(
        "labels must be text or whole numbers of 64 bits (no continuous or other values), not "
        f"{plain!r:.60}"
    )


def _refuse_unknown(labels: Sequence[Label]) -> None:
    if UNKNOWN in labels:
        raise LearnerError(f"no class may be called '{UNKNOWN}': it stands for images of no class")
