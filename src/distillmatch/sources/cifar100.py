"""CIFAR-100 (Krizhevsky 2009), python version: 60,000 images of 32 x 32, 100 classes.

The published files are pickles, and a pickle can run any code, so a file is opened only if its md5
is the published one.
"""

import hashlib
import http.client
import pickle
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, SourceError
from distillmatch.files import atomic_file, read_bytes, write_atomically
from distillmatch.sources.cache import find_published, made_once
from distillmatch.sources.dataset import ClassTree, Dataset, Part
from distillmatch.sources.registry import CheckedSource
from distillmatch.terminal import show_progress

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
    "aquatic animals": (0, 1), "plants": (2, 4, 17), "household things": (3, 5, 6),
    "invertebrates": (7, 13), "land vertebrates": (8, 11, 12, 15, 16), "outdoor scenes": (9, 10),
    "people": (14,), "vehicles": (18, 19),
}  # fmt: skip
"""The super-classes over the twenty coarse labels, which are the parents."""

TIMEOUT = 30.0
"""Seconds without a byte before a connection counts as broken."""
_EXPECTED = f"a folder that holds {FOLDER} or {ARCHIVE}"
_HINT = f"start again, or give {_EXPECTED} with --data-dir"


def _load(config: StreamConfig) -> Dataset:
    """Load CIFAR-100 from the configured folder; download it there if it is missing."""
    folder = _locate(config)
    contents = [_published(folder / name, md5) for name, md5 in FILE_MD5S.items()]
    train, test, meta = (pickle.loads(content, encoding="bytes") for content in contents)
    class_names, parent_names = (
        tuple(name.decode() for name in meta[key])
        for key in (b"fine_label_names", b"coarse_label_names")
    )
    number_of_parent = dict(zip(train[b"fine_labels"], train[b"coarse_labels"], strict=True))
    super_class_of = {p: name for name, parents in SUPER_CLASSES.items() for p in parents}
    tree = ClassTree.of_names(
        [parent_names[number_of_parent[c]] for c in range(len(class_names))],
        {name: super_class_of[number] for number, name in enumerate(parent_names)},
    )
    return Dataset("cifar100", _part(train), _part(test), class_names, tree)


def _locate(config: StreamConfig) -> Path:
    """Return the folder with the three files, downloaded and unpacked if necessary."""
    if config.image_size not in (None, SIDE):
        raise ConfigError(
            f"image_size must be {SIDE} with source 'cifar100', not {config.image_size}"
        )
    given, found = find_published(config, FOLDER, FILE_MD5S)
    if found is not None:
        return found
    archive = given if given.is_file() else given / ARCHIVE
    folder = archive.with_name(FOLDER)
    if config.data_dir and not given.exists():
        raise SourceError(f"{given}: expected {_EXPECTED}, found nothing there")
    if folder.exists() and not archive.exists():
        missing = [name for name in FILE_MD5S if not (folder / name).is_file()]
        raise SourceError(
            f"{folder}: expected the files {', '.join(FILE_MD5S)}, missing {', '.join(missing)}"
        )
    download(URL, archive, ARCHIVE_MD5)
    _unpack(archive, folder)
    return folder


load = CheckedSource(_load, _locate)


def download(url: str, path: Path, md5: str) -> None:
    """Download `url` to `path`, unless another process has done so; refuse bytes of another md5."""
    sums, doing = hashlib.md5(usedforsecurity=False), f"downloading {url}"
    if path.exists():
        return
    with made_once(path, doing):
        if path.exists():
            return
        with atomic_file(path, doing) as file:
            for block in _blocks(url):
                sums.update(block)
                file.write(block)
            if sums.hexdigest() != md5:
                raise SourceError(
                    f"{url}: expected md5 {md5}, downloaded {sums.hexdigest()}; {_HINT}"
                )


def _blocks(url: str) -> Iterator[bytes]:
    """Yield the content of `url`; raise `SourceError` if the network fails."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            total, have = int(response.headers.get("Content-Length", 0)), 0
            with show_progress("downloading", total or None, in_bytes=True) as progress:
                while block := response.read(2**18):
                    have += len(block)
                    progress(have)
                    yield block
            if have < total:
                raise ConnectionError(f"it broke off after {have:,} bytes")
    except (OSError, http.client.HTTPException) as error:
        inner = error.reason if type(error) is urllib.error.URLError else error
        reason = getattr(inner, "strerror", None) or inner
        raise SourceError(f"downloading {url} failed: {reason}; {_HINT}") from None


def _unpack(path: Path, folder: Path) -> None:
    """Unpack the archive; another than the published one could be larger than the disk."""
    _published(path, ARCHIVE_MD5)
    with tarfile.open(path) as archive:
        for name in FILE_MD5S:
            member = archive.extractfile(f"{FOLDER}/{name}")
            assert member is not None
            write_atomically(folder / name, member.read(), "unpacking CIFAR-100")


def _published(path: Path, expected: str) -> bytes:
    """Return the content of a file if it is the published one."""
    content = read_bytes(path)
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise SourceError(
            f"{path}: expected the published file with md5 {expected}, found md5 {found}"
        )
    return content


def _part(values: Mapping[bytes, Any]) -> Part:
    planes = values[b"data"].reshape(-1, 3, SIDE, SIDE)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return Part(images, np.array(values[b"fine_labels"], dtype=np.int64))
