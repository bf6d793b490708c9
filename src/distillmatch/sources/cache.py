"""A cache of decoded images: one file, which later starts map from disk.

The file holds the images (training images first), a description in JSON with their labels, and a
footer with the hash and the length of the description. It is written atomically once all images
are decoded, and used only if footer, description, size and key agree.
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, explain_disk_errors
from distillmatch.files import atomic_file, open_file, user_cache
from distillmatch.sources.dataset import UNKNOWN, Dataset, Part, fingerprint
from distillmatch.sources.images import decode_files
from distillmatch.sources.walk import shown
from distillmatch.terminal import show_progress

VERSION = 5
_FOOTER = struct.Struct("<32sQ")


class Plan(NamedTuple):
    """A data set before any of its files is opened.

    `files` are paths of images with their labels, the first `train` of them for training. Classes
    without a training image are left out and the others renumbered.
    """

    name: str
    files: Sequence[tuple[str, int]]
    train: int
    class_names: Sequence[str]
    label_fraction: float = 0.2


def load_cached(
    config: StreamConfig, name: str, key: str, side: int, prepare: Callable[[], Plan], doing: str
) -> Dataset:
    """Return the cached data set of this name and key, or decode it now.

    A process that comes second waits for the first.
    """
    path = cache_folder(config) / f"{name}.images"
    dataset = read_cache(path, key)
    if dataset is not None:
        return dataset
    with made_once(path, doing):
        return read_cache(path, key) or write_cache(path, key, side, prepare(), doing)


@contextmanager
def made_once(path: Path, doing: str) -> Iterator[None]:
    """Let one process make a file while the others wait and then find it."""
    lock = path.with_name(f"{path.name}.lock")
    held = FileLock(lock)
    with explain_disk_errors(doing, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # without locks, each process makes the file
            held.acquire()
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
            held.release()


def cache_folder(config: StreamConfig) -> Path:
    """Return the folder for decoded and downloaded files: as configured, or the user's cache."""
    folder = user_cache() if config.cache_dir is None else config.cache_dir.expanduser().absolute()
    if folder is None:
        raise ConfigError("cache_dir must be given where there is no home folder")
    return folder


def find_published(
    config: StreamConfig, folder: str, files: Collection[str]
) -> tuple[Path, Path | None]:
    """Return where a published data set is expected, and the folder with its files found there."""
    given = config.data_dir.expanduser().absolute() if config.data_dir else cache_folder(config)
    for place in (given, given / folder):
        if all((place / name).is_file() for name in files):
            return given, place
    return given, None


def cache_key(*parts: object) -> str:
    """Return a hash of everything that the decoded images depend on."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (VERSION, *parts):
        digest.update(f"{part!r}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def read_cache(path: Path, key: str) -> Dataset | None:
    """Return the cached data set, its images mapped from disk, or None if it cannot be used."""
    try:
        with open_file(path) as file:
            end = file.seek(-_FOOTER.size, os.SEEK_END)
            digest, length = _FOOTER.unpack(file.read())
            file.seek(end - length)
            described = file.read(length)
        if hashlib.sha256(described).digest() != digest:
            return None
        about = json.loads(described)
        shape, more = tuple(about["shape"]), about["dataset"]
        if about["key"] != key or int(np.prod(shape)) != end - length:
            return None
        train, test = _parts(
            np.memmap(path, np.uint8, "r", shape=shape), about["labels"], about["train"]
        )
    except (OSError, OverflowError, ValueError, struct.error):
        return None
    for field in ("class_names", "problems"):
        more[field] = tuple(more[field])
    return Dataset(train=train, test=test, **more)


def write_cache(path: Path, key: str, side: int, plan: Plan, doing: str) -> Dataset:
    """Decode the files into the cache, and return the data set mapped from disk."""
    found: list[int] = []
    learned: set[int] = set()
    problems: list[str] = []
    train = 0
    with atomic_file(path, doing) as file:
        with (
            closing(decode_files([image for image, _ in plan.files], side)) as results,
            show_progress(doing, len(plan.files)) as progress,
        ):
            for number, result in enumerate(results):
                if number % 100 == 0:
                    progress(number)
                image, label = plan.files[number]
                if isinstance(result, str):
                    problems.append(f"{shown(image)}: {result}")
                    continue
                if number < plan.train:
                    train += 1
                    learned.add(label)
                if label in learned:
                    found.append(label)
                    file.write(result.data)
        file.flush()
        classes = sorted(learned - {UNKNOWN})
        names = tuple(plan.class_names[label] for label in classes)
        new = {label: number for number, label in enumerate(classes)} | {UNKNOWN: UNKNOWN}
        labels, shape = [new[label] for label in found], (len(found), side, side, 3)
        images = np.memmap(file, np.uint8, "r", shape=shape) if found else np.empty(shape, np.uint8)
        dataset = {
            "name": plan.name,
            "class_names": names,
            "label_fraction": plan.label_fraction,
            "problems": problems,
            "known_fingerprint": fingerprint(_parts(images, labels, train), names, None),
        }
        of_images = {"key": key, "shape": shape, "train": train, "labels": labels}
        described = json.dumps({**of_images, "dataset": dataset}).encode()
        file.seek(0, os.SEEK_END)
        file.write(described + _FOOTER.pack(hashlib.sha256(described).digest(), len(described)))
    written = read_cache(path, key)
    assert written is not None
    return written


def _parts(images: NDArray[np.uint8], labels: Sequence[int], train: int) -> tuple[Part, Part]:
    """Cut images and labels into the training and the test part."""
    numbers = np.array(labels, dtype=np.int64)
    return Part(images[:train], numbers[:train]), Part(images[train:], numbers[train:])
