"""The cache: images decoded once, in one file that later starts map from disk.

The file holds the images of the training part, those of the test part, the labels of both,
everything else about the data set as JSON, and a footer: the JSON's hash, its length and a mark. It
appears whole or not at all, and is believed only if footer, JSON, labels, size and key agree;
otherwise it is made again. Until it appears, what it is made of lies in a folder beside it.
"""

import hashlib
import json
import os
import shutil
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, DistillMatchError, SourceError, explain_disk_errors
from distillmatch.files import atomic_file, lies_at, user_cache, wait_for_lock
from distillmatch.sources.dataset import PIECE_BYTES, ClassTree, Dataset, Part, fingerprint

VERSION = 2
_MARK = b"dmimages"
_FOOTER = struct.Struct("<32sQ8s")
_LABEL = np.dtype("<i8")


@dataclass(frozen=True)
class Selection:
    """Which of the decoded images make up a part, in order, and their labels."""

    rows: NDArray[np.intp]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Contents:
    """All of a data set but the images themselves."""

    name: str
    train: Selection
    test: Selection
    class_names: tuple[str, ...]
    tree: ClassTree | None = None
    label_fraction: float = 0.2
    problems: tuple[str, ...] = ()


def cache_folder(config: StreamConfig) -> Path:
    """Return where decoded and downloaded files are kept: as configured, or the user's cache."""
    if config.cache_dir is not None:
        return config.cache_dir.expanduser().absolute()
    folder = user_cache()
    if folder is None:
        raise ConfigError("cache_dir must be given where there is no home folder")
    return folder


def cache_key(*parts: object) -> str:
    """Return a hash that changes when anything changes that the decoded images depend on."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (VERSION, *parts):
        digest.update(f"{part!r}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def read_cache(path: Path, key: str) -> Dataset | None:
    """Return the cached data set, its images mapped from disk, or nothing if it is of no use."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(size - _FOOTER.size)
            digest, length, mark = _FOOTER.unpack(file.read(_FOOTER.size))
            if mark != _MARK or length > size - _FOOTER.size:
                return None
            file.seek(size - _FOOTER.size - length)
            described = file.read(length)
        if hashlib.sha256(described).digest() != digest:
            return None
        about = json.loads(described)
        shape = tuple(about["shape"])
        of_images, of_labels = int(np.prod(shape)), shape[0] * _LABEL.itemsize
        whole = of_images + of_labels == size - _FOOTER.size - length
        if about["version"] != VERSION or about["key"] != key or not whole:
            return None
        labels = np.fromfile(path, _LABEL, shape[0], offset=of_images)
        if hashlib.sha256(labels.data).hexdigest() != about["labels"]:
            return None
        images: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r", shape=shape)
        return _dataset(about, images, labels)
    except (OSError, struct.error, ValueError, KeyError, TypeError, DistillMatchError):
        return None


def write_cache(
    path: Path, key: str, images: NDArray[np.uint8], contents: Contents, doing: str
) -> Dataset:
    """Write the selected images and what belongs to them, and return them mapped from disk."""
    rows = np.concatenate([contents.train.rows, contents.test.rows])
    shape = (len(rows), *images.shape[1:])
    with atomic_file(path, doing) as file:
        count = max(1, PIECE_BYTES // int(np.prod(shape[1:])))
        for start in range(0, len(rows), count):
            file.write(np.ascontiguousarray(images[rows[start : start + count]]).data)
        file.flush()
        written: NDArray[np.uint8] = np.memmap(file, dtype=np.uint8, mode="r", shape=shape)
        about = _about(key, contents, written)
        described = json.dumps(about).encode()
        file.seek(0, os.SEEK_END)
        file.write(_labels(contents).data)
        file.write(described)
        digest = hashlib.sha256(described).digest()
        file.write(_FOOTER.pack(digest, len(described), _MARK))
    dataset = read_cache(path, key)
    if dataset is None:
        raise SourceError(f"{path}: expected the images just written, found them changed")
    return dataset


@contextmanager
def workshop(path: Path, doing: str) -> Iterator[Path]:
    """Hold the folder in which a cache is prepared; whoever comes second waits for the first.

    It is gone when the cache is made or cannot be made. If the process ends before, by a signal or
    by Ctrl-C, it stays for the next one to go on from.
    """
    folder = path.with_name(f"{path.name}.decoding")
    with explain_disk_errors(doing, folder):
        descriptor = _hold(folder)
    try:
        yield folder
    except DistillMatchError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _hold(folder: Path) -> int | None:
    """Lock a folder, made if need be, as long as the descriptor is open; Windows opens none."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            if folder.is_file():
                raise
            continue  # another process made it and was done with it in this moment
        if sys.platform == "win32":
            return None
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process was done with it in this moment
            continue
        wait_for_lock(descriptor)
        if lies_at(descriptor, folder):
            return descriptor
        os.close(descriptor)


def _labels(contents: Contents) -> NDArray[np.int64]:
    return np.concatenate([contents.train.labels, contents.test.labels]).astype(_LABEL)


def _about(key: str, contents: Contents, images: NDArray[np.uint8]) -> dict[str, Any]:
    """Describe a data set in what JSON can say."""
    split = len(contents.train.rows)
    parts = (
        Part(images[:split], contents.train.labels),
        Part(images[split:], contents.test.labels),
    )
    return {
        "version": VERSION,
        "key": key,
        "shape": images.shape,
        "name": contents.name,
        "train": split,
        "labels": hashlib.sha256(_labels(contents).data).hexdigest(),
        "class_names": contents.class_names,
        "tree": None if contents.tree is None else asdict(contents.tree),
        "label_fraction": contents.label_fraction,
        "problems": contents.problems,
        "fingerprint": fingerprint(parts, contents.class_names, contents.tree),
    }


def _dataset(
    about: Mapping[str, Any], images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> Dataset:
    """Make the data set that `_about` described."""
    split = about["train"]
    tree = about["tree"]
    return Dataset(
        name=about["name"],
        train=Part(images[:split], labels[:split]),
        test=Part(images[split:], labels[split:]),
        class_names=tuple(about["class_names"]),
        tree=None if tree is None else ClassTree(**{key: tuple(tree[key]) for key in tree}),
        label_fraction=about["label_fraction"],
        problems=tuple(about["problems"]),
        known_fingerprint=about["fingerprint"],
    )
