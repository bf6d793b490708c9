"""Tiny-ImageNet-200: 64 x 64, 200 classes, 500 training images each, tested on its val split.

Read from the extracted folder or from the zip, decoded once into the cache, and again when the
folder or the zip has changed.
"""

import io
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from distillmatch.config import StreamConfig
from distillmatch.errors import SourceError, first_of
from distillmatch.files import open_file
from distillmatch.sources.cache import Plan, cache_key, find_published, load_cached
from distillmatch.sources.dataset import Dataset
from distillmatch.sources.images import ImageFile
from distillmatch.sources.registry import CheckedSource
from distillmatch.sources.walk import list_files, name_below, shown

FOLDER = "tiny-imagenet-200"
ARCHIVE = "tiny-imagenet-200.zip"
SIDE = 64
_ANNOTATIONS = "val/val_annotations.txt"


def _load(config: StreamConfig) -> Dataset:
    """Load Tiny-ImageNet-200 from the configured folder or zip, or from the cache."""
    side, place = config.image_size or SIDE, _locate(config)
    files = _in_folder(place) if place.is_dir() else _in_zip(place)
    dataset = load_cached(
        config,
        f"{FOLDER}-{cache_key(str(place.resolve()), side)}",
        cache_key(side, files.stamp),
        side,
        partial(_plan, files),
        "decoding Tiny-ImageNet-200 into the cache",
    )
    if dataset.problems:
        raise SourceError(first_of(dataset.problems))
    return dataset


def _locate(config: StreamConfig) -> Path:
    """Return the folder that holds wnids.txt, or the zip."""
    given, found = find_published(config, FOLDER, ARCHIVE, ["wnids.txt"])
    if found is None:
        hint = "" if config.data_dir else "; put it there, or give its place with --data-dir"
        raise SourceError(
            f"{given}: expected the folder {FOLDER} or {ARCHIVE} here, found neither{hint}"
        )
    return found


load = CheckedSource(_load, _locate)


class _Files(NamedTuple):
    """The published files: their places by name, a stamp of all, and how to open one."""

    places: Mapping[str, str]
    stamp: object
    open: Callable[[str], BinaryIO]

    def lines(self, name: str) -> list[str]:
        """Return the lines of a text file that are not empty."""
        place = self.place(name, "the published files")
        try:
            with self.open(place) as file:
                return [line for line in file.read().decode().splitlines() if line.strip()]
        except UnicodeDecodeError:
            reason = "expected a text file in UTF-8"
        except OSError as error:
            reason = error.strerror or str(error)
        raise SourceError(f"{shown(place)}: {reason}")

    def place(self, name: str, listed_in: str) -> str:
        """Return the place of a listed file, or raise if it is missing."""
        if name in self.places:
            return self.places[name]
        raise SourceError(f"{name}: expected this file, which {listed_in} list, found nothing")


def _in_folder(root: Path) -> _Files:
    listing = list_files(root)
    if listing.problems:
        raise SourceError(listing.problems[0])
    places = {name_below(root, path): path for path in listing.files}
    stamps = [folder.stamp for folder in listing.folders]
    return _Files(places, stamps, lambda path: open_file(Path(path)))


def _in_zip(path: Path) -> _Files:
    try:
        archive, status = zipfile.ZipFile(path), path.stat()
    except zipfile.BadZipFile:
        raise SourceError(
            f"{path}: expected the whole {ARCHIVE}, found it cut off, damaged or no zip"
        ) from None
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    names = archive.namelist()
    roots = [name for name in names if name.split("/")[-1] == "wnids.txt"]
    if not roots:
        raise SourceError(f"{path}: expected {FOLDER}/wnids.txt in the archive, it is not there")
    root = min(roots, key=len).removesuffix("wnids.txt")

    def read(place: str) -> BinaryIO:
        try:  # to the end: only then its checksum in the archive is compared
            return io.BytesIO(archive.read(place.removeprefix(f"{path}, ")))
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise OSError(f"damaged in the archive ({error})") from None

    places = {name.removeprefix(root): f"{path}, {name}" for name in names if name.startswith(root)}
    return _Files(places, (status.st_size, status.st_mtime_ns), read)


def _plan(files: _Files) -> Plan:
    wnids = [line.strip() for line in files.lines("wnids.txt")]
    if not wnids or len({*wnids}) < len(wnids):
        raise SourceError("wnids.txt: expected one class a line, found none, or one twice")
    train, test = _train(files, wnids), _test(files, wnids)
    images = [
        (ImageFile(shown(place), partial(files.open, place)), label)
        for place, label in (*train, *test)
    ]
    return Plan("tiny-imagenet", images, len(train), _class_names(files, wnids))


def _train(files: _Files, wnids: list[str]) -> list[tuple[str, int]]:
    """List train/<wnid>/images; every image in the class's list of boxes must be there."""
    of_class = defaultdict(list)
    for name in sorted(files.places):
        if name.startswith("train/") and name.lower().endswith((".jpeg", ".jpg")):
            of_class[name.split("/")[1]].append(files.places[name])
    for wnid in wnids:
        boxes = f"train/{wnid}/{wnid}_boxes.txt"
        for line in files.lines(boxes) if boxes in files.places else ():
            files.place(f"train/{wnid}/images/{line.split()[0]}", "the boxes")
        if not of_class[wnid]:
            raise SourceError(f"train/{wnid}/images: expected the training images, found none")
    return [(place, label) for label, wnid in enumerate(wnids) for place in of_class[wnid]]


def _test(files: _Files, wnids: list[str]) -> list[tuple[str, int]]:
    """List val/images with the classes that val_annotations.txt gives."""
    label_of, found = {wnid: label for label, wnid in enumerate(wnids)}, []
    for number, line in enumerate(files.lines(_ANNOTATIONS), start=1):
        image, wnid, *_ = [*line.split(), "", ""]
        if wnid not in label_of:
            raise SourceError(
                f"{_ANNOTATIONS}, line {number}: expected an image and a class of wnids.txt, "
                f"found '{line}'"
            )
        found.append((files.place(f"val/images/{image}", "the annotations"), label_of[wnid]))
    if not found:
        raise SourceError(f"{_ANNOTATIONS}: expected the test images, found none")
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
