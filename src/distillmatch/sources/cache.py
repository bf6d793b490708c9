"""The cache: images decoded once, in one file that later starts map from disk.

The file holds the images of the training part, those of the test part, the labels of both, a
description in JSON, and a footer: the description's hash, its length and a mark. It appears whole
or not at all, and is used only if footer, description, labels, size and key agree. While it is
made, the decoded images lie in a folder beside it.
"""

import hashlib
import os
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, DistillMatchError, SourceError, explain_disk_errors
from distillmatch.files import atomic_file, locked_file, open_file, user_cache
from distillmatch.sources.dataset import PIECE_BYTES, ClassTree, Dataset, Part, fingerprint
from distillmatch.sources.decoding import JOURNAL, Decoded, decode_resumably
from distillmatch.sources.images import ImageFile

VERSION = 2
_MARK = b"dmimages"
_FOOTER = struct.Struct("<32sQ8s")
_LABEL = np.dtype("<i8")


Selection = tuple[NDArray[np.intp], NDArray[np.int64]]
"""Which of the decoded images make up a part, in order, and their labels."""


class Contents(BaseModel):
    """All of a data set but its images and labels."""

    model_config = ConfigDict(extra="forbid")

    name: str
    class_names: tuple[str, ...]
    tree: ClassTree | None = None
    label_fraction: float = 0.2
    problems: tuple[str, ...] = ()


class _Description(Contents):
    """What the file says of its images."""

    version: int
    key: str
    shape: tuple[int, int, int, int]
    train: int
    labels: str
    fingerprint: str


Arrange = Callable[[Decoded], tuple[Contents, Selection, Selection]]
"""Returns the data set that decoded images make, and its training and test part."""
Files = Sequence[ImageFile | str]


def load_cached(
    config: StreamConfig,
    name: str,
    key: str,
    side: int,
    prepare: Callable[[], tuple[Files, Arrange]],
    doing: str,
) -> Dataset:
    """Return the cached data set of this name and key, or decode it now.

    `prepare` returns the files to decode and how to arrange the decoded ones. A process that comes
    second waits for the first. If a process is killed, the next one resumes.
    """
    path = cache_folder(config) / f"{name}.images"
    dataset = read_cache(path, key)
    if dataset is not None:
        return dataset
    folder = path.with_name(f"{path.name}.decoding")
    with explain_disk_errors(doing, folder), locked_file(folder / JOURNAL) as journal:
        try:
            dataset = read_cache(path, key)
            if dataset is None:
                files, arrange = prepare()
                with decode_resumably(files, side, journal, key, doing) as decoded:
                    dataset = write_cache(path, key, decoded.images, *arrange(decoded), doing)
        except (DistillMatchError, OSError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
    return dataset


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
    """Return the cached data set, its images mapped from disk, or None if it cannot be used."""
    try:
        size = path.stat().st_size
        with open_file(path) as file:
            file.seek(size - _FOOTER.size)
            digest, length, mark = _FOOTER.unpack(file.read(_FOOTER.size))
            if mark != _MARK or length > size - _FOOTER.size:
                return None
            file.seek(size - _FOOTER.size - length)
            described = file.read(length)
        if hashlib.sha256(described).digest() != digest:
            return None
        about = _Description.model_validate_json(described)
        of_images, count = int(np.prod(about.shape)), about.shape[0]
        whole = of_images + count * _LABEL.itemsize + length + _FOOTER.size == size
        if about.version != VERSION or about.key != key or not whole:
            return None
        labels = np.fromfile(path, _LABEL, count, offset=of_images)
        if hashlib.sha256(labels.data).hexdigest() != about.labels:
            return None
        images: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r", shape=about.shape)
        return Dataset(
            train=Part(images[: about.train], labels[: about.train]),
            test=Part(images[about.train :], labels[about.train :]),
            known_fingerprint=about.fingerprint,
            **{key: getattr(about, key) for key in Contents.model_fields},
        )
    except (OSError, struct.error, ValueError, DistillMatchError):
        return None


def write_cache(
    path: Path,
    key: str,
    images: NDArray[np.uint8],
    contents: Contents,
    train: Selection,
    test: Selection,
    doing: str,
) -> Dataset:
    """Write the selected images and their description, and return them mapped from disk."""
    rows, labels = (np.concatenate(pair) for pair in zip(train, test, strict=True))
    shape, split = (len(rows), *images.shape[1:]), len(train[0])
    with atomic_file(path, doing) as file:
        count = max(1, PIECE_BYTES // int(np.prod(shape[1:])))
        for start in range(0, len(rows), count):
            file.write(np.ascontiguousarray(images[rows[start : start + count]]).data)
        file.flush()
        written: NDArray[np.uint8] = np.memmap(file, dtype=np.uint8, mode="r", shape=shape)
        parts = Part(written[:split], labels[:split]), Part(written[split:], labels[split:])
        stored = labels.astype(_LABEL).data
        about = _Description(
            **dict(contents),
            version=VERSION,
            key=key,
            shape=shape,
            train=split,
            labels=hashlib.sha256(stored).hexdigest(),
            fingerprint=fingerprint(parts, contents.class_names, contents.tree),
        )
        described = about.model_dump_json().encode()
        file.seek(0, os.SEEK_END)
        file.write(stored)
        file.write(described)
        file.write(_FOOTER.pack(hashlib.sha256(described).digest(), len(described), _MARK))
    dataset = read_cache(path, key)
    if dataset is None:
        raise SourceError(f"{path}: expected the images just written, found them changed")
    return dataset
