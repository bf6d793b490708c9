"""CIFAR-100 (Krizhevsky 2009), python version: 60,000 images of 32 x 32, 100 classes.

The published files are pickles, and a pickle can run any code, so a file is opened only if its md5
is the published one.
"""

import gzip
import hashlib
import pickle
import tarfile
import zlib
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
    train, test, meta = (_unpickle(content) for content in _published_files(config))
    return Dataset(
        name="cifar100",
        train=_part(train),
        test=_part(test),
        class_names=_names(meta[b"fine_label_names"]),
        tree=_tree(train, _names(meta[b"coarse_label_names"])),
    )


def _published_files(config: StreamConfig) -> tuple[bytes, ...]:
    """Return the bytes of train, test and meta, each with the published md5."""
    place = _locate(config)
    if place.is_file():
        return _read_archive(place)
    return tuple(_read_file(place / name) for name in FILE_MD5S)


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
    for name, content in zip(FILE_MD5S, _read_archive(archive), strict=True):
        write_atomically(folder / FOLDER / name, content, "unpacking CIFAR-100")
    return folder / FOLDER


load = CheckedSource(_load, _locate)


def _read_file(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    return _checked(content, path.name, str(path))


def _read_archive(path: Path) -> tuple[bytes, ...]:
    """Read the three files from the published archive, in memory.

    Its md5 is checked first: another archive could unpack to more than the memory holds.
    """
    found: dict[str, bytes] = {}
    try:
        md5 = file_md5(path)
        if md5 != ARCHIVE_MD5:
            raise SourceError(
                f"{path}: expected the published {ARCHIVE} with md5 {ARCHIVE_MD5}, found md5 {md5}"
            )
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                if member.isfile() and name in FILE_MD5S and folder.rpartition("/")[2] == FOLDER:
                    stream = archive.extractfile(member)
                    content = b"" if stream is None else stream.read()
                    found[name] = _checked(content, name, f"{path}, member {member.name}")
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError):
        raise SourceError(
            f"{path}: expected the whole {ARCHIVE}, found it cut off or damaged"
        ) from None
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    missing = [name for name in FILE_MD5S if name not in found]
    if missing:
        raise SourceError(f"{path}: expected {FOLDER}/{missing[0]} in the archive, it is not there")
    return tuple(found[name] for name in FILE_MD5S)


def _checked(content: bytes, name: str, where: str) -> bytes:
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 != FILE_MD5S[name]:
        raise SourceError(
            f"{where}: expected the published file with md5 {FILE_MD5S[name]}, found md5 {md5}"
        )
    return content


def _unpickle(content: bytes) -> Mapping[bytes, Any]:
    values: Mapping[bytes, Any] = pickle.loads(content, encoding="bytes")
    return values


def _part(values: Mapping[bytes, Any]) -> Part:
    planes = values[b"data"].reshape(-1, 3, SIDE, SIDE)
    return Part(
        images=np.ascontiguousarray(planes.transpose(0, 2, 3, 1)),
        labels=np.array(values[b"fine_labels"], dtype=np.int64),
    )


def _names(names: list[bytes]) -> tuple[str, ...]:
    return tuple(name.decode() for name in names)


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
