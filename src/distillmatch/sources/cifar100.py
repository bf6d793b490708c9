"""CIFAR-100 (Krizhevsky 2009), python version: 60,000 images of 32 x 32, 100 classes.

The published files are pickles, and a pickle can run any code, so a file is opened only if its md5
is the published one.
"""

import hashlib
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, SourceError
from distillmatch.files import write_atomically
from distillmatch.sources.cache import cache_folder
from distillmatch.sources.dataset import ClassTree, Dataset, Part
from distillmatch.sources.download import download, file_md5
from distillmatch.sources.registry import CheckedSource

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
ARCHIVE = "cifar-100-python.tar.gz"
ARCHIVE_MD5 = "eb9058c3a382ffc7106e4002c42a8d85"
FOLDER = "cifar-100-python"
FILE_MD5S = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
SIDE = 32

SUPER_CLASSES: Mapping[str, tuple[int, ...]] = {
    "aquatic animals": (0, 1),
    "plants": (2, 4, 17),
    "household things": (3, 5, 6),
    "invertebrates": (7, 13),
    "land vertebrates": (8, 11, 12, 15, 16),
    "outdoor scenes": (9, 10),
    "people": (14,),
    "vehicles": (18, 19),
}
"""The super-classes over the twenty coarse labels, which are the parents."""

_INSTEAD = f"give a folder that holds {FOLDER} or {ARCHIVE} with --data-dir"


def _load(config: StreamConfig) -> Dataset:
    """Load CIFAR-100 from the configured folder; download it there if it is missing."""
    contents = _read_published(_locate(config))
    train, test, meta = (pickle.loads(content, encoding="bytes") for content in contents)
    class_names, parent_names = (
        tuple(name.decode() for name in meta[key])
        for key in (b"fine_label_names", b"coarse_label_names")
    )
    tree = _tree(train, parent_names)
    return Dataset("cifar100", _part(train), _part(test), class_names, tree)


def _locate(config: StreamConfig) -> Path:
    """Return the folder with the three files, or the archive, downloaded if necessary."""
    if config.image_size not in (None, SIDE):
        raise ConfigError(
            f"image_size must be {SIDE} with source 'cifar100', not {config.image_size}"
        )
    if config.data_dir is None:
        folder = cache_folder(config)
    else:
        folder = config.data_dir.expanduser()
        if not folder.exists():
            raise SourceError(
                f"{folder}: expected a folder that holds {FOLDER} or {ARCHIVE}, found nothing there"
            )
        if folder.is_file():
            return folder
    for extracted in (folder, folder / FOLDER):
        if all((extracted / name).is_file() for name in FILE_MD5S):
            return extracted
    archive = folder / ARCHIVE
    if archive.is_file():
        return archive
    if (folder / FOLDER).exists():
        missing = [name for name in FILE_MD5S if not (folder / FOLDER / name).is_file()]
        raise SourceError(
            f"{folder / FOLDER}: expected the files {', '.join(FILE_MD5S)}, "
            f"missing {', '.join(missing)}"
        )
    download(URL, archive, ARCHIVE_MD5, _INSTEAD)
    # Later starts need not unpack it.
    for name, content in zip(FILE_MD5S, _read_published(archive), strict=True):
        write_atomically(folder / FOLDER / name, content, "unpacking CIFAR-100")
    return folder / FOLDER


load = CheckedSource(_load, _locate)


def _read_published(place: Path) -> list[bytes]:
    """Return train, test and meta from a folder or the archive, if they are the published ones.

    The md5 of the archive is checked first: another could unpack to more than the memory holds.
    """
    try:
        if place.is_dir():
            contents = [(place / name).read_bytes() for name in FILE_MD5S]
        else:
            _check_md5(f"{place}: expected the published {ARCHIVE}", file_md5(place), ARCHIVE_MD5)
            with tarfile.open(place) as archive:
                files = [archive.extractfile(f"{FOLDER}/{name}") for name in FILE_MD5S]
                contents = [file.read() for file in files if file]
    except OSError as error:
        raise SourceError(f"{error.filename or place}: {error.strerror or error}") from None
    for (name, expected), content in zip(FILE_MD5S.items(), contents, strict=True):
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        _check_md5(f"{place}, {name}: expected the published file", md5, expected)
    return contents


def _check_md5(what: str, md5: str, expected: str) -> None:
    if md5 != expected:
        raise SourceError(f"{what} with md5 {expected}, found md5 {md5}")


def _part(values: Mapping[bytes, Any]) -> Part:
    planes = values[b"data"].reshape(-1, 3, SIDE, SIDE)
    return Part(
        images=np.ascontiguousarray(planes.transpose(0, 2, 3, 1)),
        labels=np.array(values[b"fine_labels"], dtype=np.int64),
    )


def _tree(train: Mapping[bytes, Any], parent_names: tuple[str, ...]) -> ClassTree:
    parent_of_class = dict(zip(train[b"fine_labels"], train[b"coarse_labels"], strict=True))
    super_class_of_parent = {
        parent: number
        for number, parents in enumerate(SUPER_CLASSES.values())
        for parent in parents
    }
    return ClassTree(
        parent_of_class=tuple(parent_of_class[c] for c in sorted(parent_of_class)),
        super_class_of_parent=tuple(super_class_of_parent[p] for p in range(len(parent_names))),
        parent_names=parent_names,
        super_class_names=tuple(SUPER_CLASSES),
    )
