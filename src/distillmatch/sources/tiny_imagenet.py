"""Tiny-ImageNet-200: 64 x 64, 200 classes, 500 training images each, tested on its val split.

Read from the extracted folder or from the zip, decoded once into the cache. The cache is made again
when the zip changed, or when files were added to or removed from the folder.
"""

import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from distillmatch.config import StreamConfig
from distillmatch.errors import SourceError
from distillmatch.sources.cache import (
    Contents,
    Selection,
    cache_folder,
    cache_key,
    read_cache,
    workshop,
    write_cache,
)
from distillmatch.sources.dataset import Dataset
from distillmatch.sources.decoding import decode_resumably
from distillmatch.sources.images import ImageFile
from distillmatch.sources.registry import CheckedSource
from distillmatch.sources.walk import list_files, shown

FOLDER = "tiny-imagenet-200"
ARCHIVE = "tiny-imagenet-200.zip"
SIDE = 64

_EXPECTED = f"the folder {FOLDER} or {ARCHIVE}"
_DOING = "decoding Tiny-ImageNet-200 into the cache"
_IMAGE_ENDINGS = (".jpeg", ".jpg")


def _load(config: StreamConfig) -> Dataset:
    """Load Tiny-ImageNet-200 from the configured folder or zip, or from what it was cached as."""
    side = config.image_size or SIDE
    place = _locate(config)
    with _open(place) as files:
        cache = cache_folder(config) / f"{FOLDER}-{cache_key(str(place.resolve()), side)}.images"
        key = cache_key(side, files.stamps)
        dataset = read_cache(cache, key)
        if dataset is None:
            with workshop(cache, _DOING) as folder:
                dataset = read_cache(cache, key) or _decode(files, side, cache, key, folder)
        return dataset


class _Files(Protocol):
    """The published files, wherever they lie: named from the root of the data set."""

    @property
    def stamps(self) -> Sequence[object]: ...
    def names(self) -> Sequence[str]: ...
    def where(self, name: str) -> str: ...
    def open(self, name: str) -> BinaryIO: ...


class _FolderFiles:
    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def stamps(self) -> Sequence[object]:
        """When the lists and the folders last changed: quick to ask, unlike for 110,000 images."""
        listed = [
            *self._root.glob("*.txt"),
            *self._root.glob("val/*"),
            *self._root.glob("train/*/*"),
        ]
        return sorted((str(path), path.stat().st_mtime_ns) for path in listed)

    def names(self) -> Sequence[str]:
        listings = [list_files(self._root, part) for part in ("train", "val")]
        for problem in (problem for listing in listings for problem in listing.problems):
            raise SourceError(problem)
        return [file.name for listing in listings for file in listing.files]

    def where(self, name: str) -> str:
        return shown(self._root / name)

    def open(self, name: str) -> BinaryIO:
        return (self._root / name).open("rb")


class _ZipFiles:
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path = path
        self._archive = archive
        roots = [name for name in archive.namelist() if name.split("/")[-1] == "wnids.txt"]
        if not roots:
            raise SourceError(
                f"{path}: expected {FOLDER}/wnids.txt in the archive, it is not there"
            )
        self._root = min(roots, key=len).removesuffix("wnids.txt")

    @property
    def stamps(self) -> Sequence[object]:
        status = self._path.stat()
        return (status.st_size, status.st_mtime_ns)

    def names(self) -> Sequence[str]:
        inside = (name for name in self._archive.namelist() if name.startswith(self._root))
        return [name.removeprefix(self._root) for name in inside]

    def where(self, name: str) -> str:
        return f"{self._path}, member {self._root}{name}"

    def open(self, name: str) -> BinaryIO:
        # Read to the end, because only then the archive's checksum of the file is compared.
        try:
            return io.BytesIO(self._archive.read(self._root + name))
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise OSError(f"damaged in the archive ({error})") from None


@dataclass(frozen=True)
class _Listing:
    """Image names and labels of one part, as the data set's own lists have them."""

    names: list[str]
    labels: list[int]


def _locate(config: StreamConfig) -> Path:
    """Return the folder that holds wnids.txt, or the zip."""
    if config.data_dir is None:
        given = cache_folder(config)
        hint = "; put it there, or give its place with --data-dir"
    else:
        given = config.data_dir.expanduser().absolute()
        hint = ""
        if not given.exists():
            raise SourceError(f"{given}: expected {_EXPECTED}, found nothing there")
    if given.is_file():
        return given
    for folder in (given, given / FOLDER):
        if (folder / "wnids.txt").is_file():
            return folder
    if (given / ARCHIVE).is_file():
        return given / ARCHIVE
    raise SourceError(f"{given}: expected {_EXPECTED} here, found neither{hint}")


load = CheckedSource(_load, _locate)


@contextmanager
def _open(place: Path) -> Iterator[_Files]:
    if place.is_dir():
        yield _FolderFiles(place)
        return
    try:
        archive = zipfile.ZipFile(place)
    except zipfile.BadZipFile:
        raise SourceError(
            f"{place}: expected the whole {ARCHIVE}, found it cut off, damaged or no zip"
        ) from None
    except OSError as error:
        raise SourceError(f"{place}: {error.strerror or error}") from None
    with archive:
        yield _ZipFiles(place, archive)


def _decode(files: _Files, side: int, cache: Path, key: str, folder: Path) -> Dataset:
    wnids = [line.strip() for line in _lines(files, "wnids.txt") if line.strip()]
    repeated = [wnid for wnid, count in Counter(wnids).items() if count > 1]
    if repeated or not wnids:
        raise SourceError(
            f"{files.where('wnids.txt')}: expected one class a line, "
            f"found {f'{repeated[0]} twice' if repeated else 'none'}"
        )
    present = frozenset(files.names())
    train, test = _training(files, present, wnids), _validation(files, present, wnids)
    names = [*train.names, *test.names]
    images = [ImageFile(files.where(name), partial(files.open, name)) for name in names]
    with decode_resumably(images, side, folder, key, _DOING) as decoded:
        if decoded.problems:
            more = len(decoded.problems) - 1
            raise SourceError(decoded.problems[0] + (f" (and {more} more)" if more else ""))
        split = len(train.names)
        contents = Contents(
            name="tiny-imagenet",
            train=Selection(np.arange(split), np.array(train.labels, dtype=np.int64)),
            test=Selection(np.arange(split, len(names)), np.array(test.labels, dtype=np.int64)),
            class_names=_class_names(files, wnids),
        )
        return write_cache(cache, key, decoded.images, contents, _DOING)


def _training(files: _Files, present: frozenset[str], wnids: Sequence[str]) -> _Listing:
    """List train/<wnid>/images; an image that the class's list of boxes has must be there."""
    of_class: dict[str, list[str]] = {wnid: [] for wnid in wnids}
    for name in sorted(present):
        part, _, rest = name.partition("/")
        wnid, _, image = rest.partition("/images/")
        if part == "train" and wnid in of_class and image.lower().endswith(_IMAGE_ENDINGS):
            of_class[wnid].append(name)
    listing = _Listing([], [])
    for label, wnid in enumerate(wnids):
        boxes = f"train/{wnid}/{wnid}_boxes.txt"
        if boxes in present:
            for line in _lines(files, boxes):
                _require(files, present, f"train/{wnid}/images/{line.split()[0]}", boxes)
        if not of_class[wnid]:
            where = files.where(f"train/{wnid}/images")
            raise SourceError(f"{where}: expected the training images of class {wnid}, found none")
        listing.names.extend(of_class[wnid])
        listing.labels.extend([label] * len(of_class[wnid]))
    return listing


def _validation(files: _Files, present: frozenset[str], wnids: Sequence[str]) -> _Listing:
    """List val/images with the classes that val_annotations.txt gives."""
    annotations = "val/val_annotations.txt"
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    listing = _Listing([], [])
    for number, line in enumerate(_lines(files, annotations), start=1):
        image, wnid, *_ = [*line.split(), "", ""]
        if wnid not in label_of:
            raise SourceError(
                f"{files.where(annotations)}, line {number}: expected an image and a class of "
                f"wnids.txt, found '{line}'"
            )
        _require(files, present, f"val/images/{image}", annotations)
        listing.names.append(f"val/images/{image}")
        listing.labels.append(label_of[wnid])
    if not listing.names:
        raise SourceError(f"{files.where(annotations)}: expected the test images, found none")
    return listing


def _require(files: _Files, present: frozenset[str], name: str, listed_in: str) -> None:
    if name not in present:
        raise SourceError(
            f"{files.where(name)}: expected this image, which {listed_in} lists, found none"
        )


def _class_names(files: _Files, wnids: Sequence[str]) -> tuple[str, ...]:
    """Return each class's first word, with its wnid where two classes share it."""
    words = {}
    for line in _lines(files, "words.txt"):
        wnid, _, synonyms = line.partition("\t")
        words[wnid] = synonyms.split(",")[0].strip()
    names = [words.get(wnid) or wnid for wnid in wnids]
    uses = Counter(names)
    return tuple(
        f"{name} ({wnid})" if uses[name] > 1 else name
        for name, wnid in zip(names, wnids, strict=True)
    )


def _lines(files: _Files, name: str) -> list[str]:
    """Return the lines of a text file that are not empty."""
    try:
        with files.open(name) as file:
            text = file.read().decode()
    except (KeyError, FileNotFoundError):
        raise SourceError(f"{files.where(name)}: expected this file, found nothing there") from None
    except UnicodeDecodeError:
        raise SourceError(f"{files.where(name)}: expected a text file in UTF-8") from None
    except OSError as error:
        raise SourceError(f"{files.where(name)}: {error.strerror or error}") from None
    return [line for line in text.splitlines() if line.strip()]
