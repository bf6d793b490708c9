"""Tiny-ImageNet-200: 64 x 64, 200 classes, 500 training images each, tested on its val split.

Read from the extracted folder or from the zip, decoded once into the cache. The cache is made again
when the zip changed, or when files were added to or removed from the folder.
"""

import io
import zipfile
import zlib
from collections import Counter
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from distillmatch.config import StreamConfig
from distillmatch.errors import SourceError
from distillmatch.sources.cache import (
    Arrange,
    Contents,
    Files,
    Selection,
    cache_folder,
    cache_key,
    load_cached,
)
from distillmatch.sources.dataset import Dataset
from distillmatch.sources.decoding import Decoded
from distillmatch.sources.images import ImageFile
from distillmatch.sources.registry import CheckedSource
from distillmatch.sources.walk import list_files, name_below, shown

FOLDER = "tiny-imagenet-200"
ARCHIVE = "tiny-imagenet-200.zip"
SIDE = 64
_IMAGE_ENDINGS = (".jpeg", ".jpg")
_ANNOTATIONS = "val/val_annotations.txt"


def _load(config: StreamConfig) -> Dataset:
    """Load Tiny-ImageNet-200 from the configured folder or zip, or from the cache."""
    side, place = config.image_size or SIDE, _locate(config)
    with nullcontext() if place.is_dir() else _open_zip(place) as archive:
        files = _Files(place) if archive is None else _ZippedFiles(place, archive)
        return load_cached(
            config,
            f"{FOLDER}-{cache_key(str(place.resolve()), side)}",
            cache_key(side, files.stamps()),
            side,
            partial(_prepare, files),
            "decoding Tiny-ImageNet-200 into the cache",
        )


def _locate(config: StreamConfig) -> Path:
    """Return the folder that holds wnids.txt, or the zip."""
    expected, hint = f"the folder {FOLDER} or {ARCHIVE}", ""
    if config.data_dir is None:
        given = cache_folder(config)
        hint = "; put it there, or give its place with --data-dir"
    else:
        given = config.data_dir.expanduser().absolute()
        if not given.exists():
            raise SourceError(f"{given}: expected {expected}, found nothing there")
    if given.is_file():
        return given
    for folder in (given, given / FOLDER):
        if (folder / "wnids.txt").is_file():
            return folder
    if (given / ARCHIVE).is_file():
        return given / ARCHIVE
    raise SourceError(f"{given}: expected {expected} here, found neither{hint}")


load = CheckedSource(_load, _locate)


class _Files:
    """The published files in a folder, named from its root."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def where(self, name: str) -> str:
        """Return what messages call a file."""
        return shown(self.place / name)

    def open(self, name: str) -> BinaryIO:
        """Open a file."""
        return (self.place / name).open("rb")

    def stamps(self) -> object:
        """Return what changes when the files do.

        That is the times of the lists and folders: those of 110,000 images would take long.
        """
        listed = (p for part in ("*.txt", "val/*", "train/*/*") for p in self.place.glob(part))
        return sorted((str(path), path.stat().st_mtime_ns) for path in listed)

    @cached_property
    def names(self) -> frozenset[str]:
        """All names in the folders train and val."""
        listings = [list_files(self.place, part) for part in ("train", "val")]
        for problem in (problem for listing in listings for problem in listing.problems):
            raise SourceError(problem)
        paths = (path for listing in listings for path in listing.files)
        return frozenset(name_below(self.place, path) for path in paths)

    def require(self, name: str, listed_in: str) -> str:
        """Return the name of an image that a list has, or refuse it if it is not there."""
        if name not in self.names:
            raise SourceError(
                f"{self.where(name)}: expected this image, which {listed_in} lists, found none"
            )
        return name

    def lines(self, name: str) -> list[str]:
        """Return the lines of a text file that are not empty."""
        try:
            with self.open(name) as file:
                return [line for line in file.read().decode().splitlines() if line.strip()]
        except (KeyError, FileNotFoundError):
            reason = "expected this file, found nothing there"
        except UnicodeDecodeError:
            reason = "expected a text file in UTF-8"
        except OSError as error:
            reason = error.strerror or str(error)
        raise SourceError(f"{self.where(name)}: {reason}")


class _ZippedFiles(_Files):
    """The published files in the zip."""

    def __init__(self, place: Path, archive: zipfile.ZipFile) -> None:
        super().__init__(place)
        self.archive, everything = archive, archive.namelist()
        roots = [name for name in everything if name.split("/")[-1] == "wnids.txt"]
        if not roots:
            raise SourceError(
                f"{place}: expected {FOLDER}/wnids.txt in the archive, it is not there"
            )
        self.root = min(roots, key=len).removesuffix("wnids.txt")
        inside = (name for name in everything if name.startswith(self.root))
        self.names = frozenset(name.removeprefix(self.root) for name in inside)

    def where(self, name: str) -> str:
        """Return what messages call a file."""
        return f"{self.place}, member {self.root}{name}"

    def open(self, name: str) -> BinaryIO:
        """Read a file to the end: only then its checksum in the archive is compared."""
        try:
            return io.BytesIO(self.archive.read(self.root + name))
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise OSError(f"damaged in the archive ({error})") from None

    def stamps(self) -> object:
        """Return the size and the time of the zip."""
        status = self.place.stat()
        return status.st_size, status.st_mtime_ns


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile:
        reason = f"expected the whole {ARCHIVE}, found it cut off, damaged or no zip"
    except OSError as error:
        reason = error.strerror or str(error)
    raise SourceError(f"{path}: {reason}")


def _prepare(files: _Files) -> tuple[Files, Arrange]:
    wnids = [line.strip() for line in files.lines("wnids.txt")]
    repeated = [wnid for wnid, count in Counter(wnids).items() if count > 1]
    if repeated or not wnids:
        raise SourceError(
            f"{files.where('wnids.txt')}: expected one class a line, "
            f"found {f'{repeated[0]} twice' if repeated else 'none'}"
        )
    class_names = _class_names(files, wnids)
    train, test = _training(files, wnids), _validation(files, wnids)
    labels = np.array([label for _, label in (*train, *test)], dtype=np.int64)
    numbers, split = np.arange(len(labels)), len(train)

    def arrange(decoded: Decoded) -> tuple[Contents, Selection, Selection]:
        if decoded.problems:
            more = len(decoded.problems) - 1
            raise SourceError(decoded.problems[0] + (f" (and {more} more)" if more else ""))
        contents = Contents(name="tiny-imagenet", class_names=class_names)
        return contents, (numbers[:split], labels[:split]), (numbers[split:], labels[split:])

    images = [ImageFile(files.where(n), partial(files.open, n)) for n, _ in (*train, *test)]
    return images, arrange


def _training(files: _Files, wnids: list[str]) -> list[tuple[str, int]]:
    """List train/<wnid>/images; an image that the class's list of boxes has must be there."""
    of_class: dict[str, list[str]] = {wnid: [] for wnid in wnids}
    for name in sorted(files.names):
        part, _, rest = name.partition("/")
        wnid, _, image = rest.partition("/images/")
        if part == "train" and wnid in of_class and image.lower().endswith(_IMAGE_ENDINGS):
            of_class[wnid].append(name)
    for wnid, names in of_class.items():
        boxes = f"train/{wnid}/{wnid}_boxes.txt"
        for line in files.lines(boxes) if boxes in files.names else ():
            files.require(f"train/{wnid}/images/{line.split()[0]}", boxes)
        if not names:
            where = files.where(f"train/{wnid}/images")
            raise SourceError(f"{where}: expected the training images of class {wnid}, found none")
    return [(name, label) for label, wnid in enumerate(wnids) for name in of_class[wnid]]


def _validation(files: _Files, wnids: list[str]) -> list[tuple[str, int]]:
    """List val/images with the classes that val_annotations.txt gives."""
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    found = []
    for number, line in enumerate(files.lines(_ANNOTATIONS), start=1):
        image, wnid, *_ = [*line.split(), "", ""]
        if wnid not in label_of:
            raise SourceError(
                f"{files.where(_ANNOTATIONS)}, line {number}: expected an image and a class of "
                f"wnids.txt, found '{line}'"
            )
        found.append((files.require(f"val/images/{image}", _ANNOTATIONS), label_of[wnid]))
    if not found:
        raise SourceError(f"{files.where(_ANNOTATIONS)}: expected the test images, found none")
    return found


def _class_names(files: _Files, wnids: list[str]) -> tuple[str, ...]:
    """Return each class's first word, with its wnid where two classes share it."""
    pairs = (line.partition("\t") for line in files.lines("words.txt"))
    words = {wnid: synonyms.split(",")[0].strip() for wnid, _, synonyms in pairs}
    names = [words.get(wnid) or wnid for wnid in wnids]
    uses = Counter(names)
    return tuple(
        f"{name} ({wnid})" if uses[name] > 1 else name
        for name, wnid in zip(names, wnids, strict=True)
    )
