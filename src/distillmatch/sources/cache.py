"""The cache: images decoded once, in one file that later starts map from disk.

The file holds the images of the training part, those of the test part, everything else about the
data set as JSON, and a footer: the JSON's hash, its length and a mark. It appears whole or not at
all, and is believed only if footer, JSON, size and key agree; otherwise it is made again.
"""

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, DistillMatchError, SourceError
from distillmatch.files import atomic_file
from distillmatch.sources.dataset import ClassTree, Dataset, Part, fingerprint

VERSION = 1
_MARK = b"dmimages"
_FOOTER = struct.Struct("<32sQ8s")
_CHUNK = 1024


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
    # An empty or relative XDG_CACHE_HOME is to be ignored, says its specification.
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "distillmatch"
    try:
        return Path.home() / ".cache" / "distillmatch"
    except RuntimeError:
        raise ConfigError("cache_dir must be given where there is no home folder") from None


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
        if about["version"] != VERSION or about["key"] != key:
            return None
        shape = tuple(about["shape"])
        if int(np.prod(shape)) != size - _FOOTER.size - length:
            return None
        images: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r", shape=shape)
        return _dataset(about, images)
    except (OSError, struct.error, ValueError, KeyError, TypeError, DistillMatchError):
        return None


def write_cache(
    path: Path, key: str, images: NDArray[np.uint8], contents: Contents, doing: str
) -> Dataset:
    """Write the selected images and what belongs to them, and return them mapped from disk."""
    rows = np.concatenate([contents.train.rows, contents.test.rows])
    shape = (len(rows), *images.shape[1:])
    with atomic_file(path, doing) as file:
        for start in range(0, len(rows), _CHUNK):
            file.write(np.ascontiguousarray(images[rows[start : start + _CHUNK]]).data)
        file.flush()
        written: NDArray[np.uint8] = np.memmap(file, dtype=np.uint8, mode="r", shape=shape)
        about = _about(key, contents, written)
        described = json.dumps(about).encode()
        file.seek(0, os.SEEK_END)
        file.write(described)
        digest = hashlib.sha256(described).digest()
        file.write(_FOOTER.pack(digest, len(described), _MARK))
    dataset = read_cache(path, key)
    if dataset is None:
        raise SourceError(f"{path}: expected the images just written, found them changed")
    return dataset


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
        "train_labels": contents.train.labels.tolist(),
        "test_labels": contents.test.labels.tolist(),
        "class_names": contents.class_names,
        "tree": None if contents.tree is None else asdict(contents.tree),
        "label_fraction": contents.label_fraction,
        "problems": contents.problems,
        "fingerprint": fingerprint(parts, contents.class_names, contents.tree),
    }


def _dataset(about: Mapping[str, Any], images: NDArray[np.uint8]) -> Dataset:
    """Make the data set that `_about` described."""
    train_labels = np.array(about["train_labels"], dtype=np.int64)
    test_labels = np.array(about["test_labels"], dtype=np.int64)
    tree = about["tree"]
    return Dataset(
        name=about["name"],
        train=Part(images[: len(train_labels)], train_labels),
        test=Part(images[len(train_labels) :], test_labels),
        class_names=tuple(about["class_names"]),
        tree=None if tree is None else ClassTree(**{key: tuple(tree[key]) for key in tree}),
        label_fraction=about["label_fraction"],
        problems=tuple(about["problems"]),
        known_fingerprint=about["fingerprint"],
    )
