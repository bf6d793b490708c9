"""The cache is used only if it is whole, and nothing half written is left."""

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from distillmatch.config import StreamConfig
from distillmatch.errors import DiskError
from distillmatch.sources import ClassTree, Dataset, folder
from distillmatch.sources.cache import (
    Contents,
    Selection,
    cache_folder,
    cache_key,
    read_cache,
    write_cache,
)

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
TREE = ClassTree((0, 1), (0, 0), ("left", "right"), ("all",))
CONTENTS = Contents(
    name="made",
    train=Selection(np.array([5, 0, 2]), np.array([1, 0, -1])),
    test=Selection(np.array([4, 1]), np.array([0, 1])),
    class_names=("ä", "b"),
    tree=TREE,
    label_fraction=0.5,
    problems=("one: wrong",),
)


def write(path: Path) -> Dataset:
    return write_cache(path, "key", PIXELS, CONTENTS, "testing")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written = write(tmp_path / "cache")
    dataset = read_cache(tmp_path / "cache", "key")
    assert dataset is not None
    assert isinstance(dataset.train.images, np.memmap)
    assert np.array_equal(dataset.train.images, PIXELS[[5, 0, 2]])
    assert np.array_equal(dataset.test.images, PIXELS[[4, 1]])
    assert dataset.train.labels.tolist() == [1, 0, -1]
    assert dataset.test.labels.tolist() == [0, 1]
    assert (dataset.class_names, dataset.tree) == (CONTENTS.class_names, TREE)
    assert (dataset.label_fraction, dataset.problems) == (0.5, ("one: wrong",))
    assert dataset.known_fingerprint == written.known_fingerprint
    with pytest.raises(ValueError, match="read-only"):
        dataset.train.images[0] = 0


def test_a_test_part_may_be_empty(tmp_path: Path) -> None:
    empty = Selection(np.array([], dtype=np.intp), np.array([], dtype=np.int64))
    contents = Contents("made", CONTENTS.train, empty, ("a", "b"))
    dataset = write_cache(tmp_path / "cache", "key", PIXELS, contents, "testing")
    assert (len(dataset.train), len(dataset.test)) == (3, 0)


def test_keys_differ_when_anything_differs(tmp_path: Path) -> None:
    keys = [cache_key(1, ("a", 2)), cache_key(1, ("a", 3)), cache_key(2, ("a", 2)), cache_key(1)]
    assert len({*keys, cache_key("\udcff"), cache_key("\udcfe")}) == 6
    write(tmp_path / "cache")
    assert read_cache(tmp_path / "cache", "other") is None


def test_a_damaged_cache_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    write(path)
    whole = path.read_bytes()
    changed = [whole + b"x", b"x" + whole, b"hello", b"\0" * 5000, json.dumps({}).encode() * 99]
    changed += [whole[:length] for length in range(0, len(whole), 7)]
    for place in range(5 * 8 * 8 * 3, len(whole), 5):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        changed.append(bytes(flipped))
    for content in changed:
        path.write_bytes(content)
        assert read_cache(path, "key") is None


def test_a_folder_where_the_cache_should_be_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    assert read_cache(tmp_path / "cache", "key") is None
    with pytest.raises(DiskError, match=r"cache: .* while testing"):
        write(tmp_path / "cache")


def test_the_place_is_the_configured_one_or_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_folder(StreamConfig(cache_dir=tmp_path)) == tmp_path
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder(StreamConfig()) == tmp_path / "xdg" / "distillmatch"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder(StreamConfig()) == tmp_path / "home" / ".cache" / "distillmatch"


@pytest.fixture
def config(tmp_path: Path) -> StreamConfig:
    """Describe a folder of two classes of six images, and a cache folder."""
    for name in ("a", "b"):
        for number in range(6):
            path = tmp_path / "data" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (number, 0, 0)).save(path)
    return StreamConfig(source="folder", data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")


def cached_files(config: StreamConfig) -> list[Path]:
    assert config.cache_dir is not None
    return list(config.cache_dir.iterdir())


def test_a_damaged_cache_is_made_again(config: StreamConfig) -> None:
    expected = folder.load(config).fingerprint
    (path,) = cached_files(config)
    path.write_bytes(path.read_bytes()[:-100])
    assert folder.load(config).fingerprint == expected
    assert cached_files(config) == [path]


def fail_sync(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    """Let the system's call that saves a file fail at its `number`-th use."""
    calls: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == number:
            raise error
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("number", [1, 2])
def test_a_disk_that_fills_up_is_reported_and_nothing_is_left(
    config: StreamConfig, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """First the decoded images are saved, then the cache."""
    fail_sync(monkeypatch, number, FULL)
    with pytest.raises(DiskError, match=r"no space left on the disk of .* while decoding"):
        folder.load(config)
    assert cached_files(config) == []
    assert len(folder.load(config).train) == 10


def test_an_older_cache_survives_a_full_disk(
    config: StreamConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.load(config)
    (path,) = cached_files(config)
    before = path.read_bytes()
    assert config.data_dir is not None
    Image.new("RGB", (32, 32)).save(config.data_dir / "a" / "new.png")
    fail_sync(monkeypatch, 2, FULL)
    with pytest.raises(DiskError, match="no space left"):
        folder.load(config)
    assert cached_files(config) == [path]
    assert path.read_bytes() == before


LIMITED = """
import resource, sys
from distillmatch.config import StreamConfig
from distillmatch.errors import DiskError
from distillmatch.sources import folder
limit = int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    folder.load(StreamConfig(source="folder", data_dir=sys.argv[1], cache_dir=sys.argv[2]))
except DiskError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits a Unix process")
@pytest.mark.parametrize("limit", [20_000, 12 * 3072 + 10])
def test_a_real_limit_on_the_file_size_leaves_nothing(config: StreamConfig, limit: int) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(config.data_dir), str(config.cache_dir), str(limit)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "File too large while decoding the images into the cache" in result.stdout
    assert cached_files(config) == []


def test_an_unwritable_cache_folder_is_reported(
    config: StreamConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    for place in ("file/cache", "file"):
        with pytest.raises(DiskError, match="while decoding the images into the cache"):
            folder.load(config.replace(cache_dir=tmp_path / place))
    if os.name == "posix" and os.geteuid():
        (tmp_path / "forbidden").mkdir(mode=0o500)
        with pytest.raises(DiskError, match="Permission denied while decoding"):
            folder.load(config.replace(cache_dir=tmp_path / "forbidden"))


def test_an_interrupted_build_leaves_only_what_the_next_one_resumes_from(
    config: StreamConfig, monkeypatch: pytest.MonkeyPatch, decoded: list[int]
) -> None:
    fail_sync(monkeypatch, 2, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        folder.load(config)
    (left,) = cached_files(config)
    assert left.name.endswith(".decoding")
    assert len(folder.load(config).train) == 10
    assert len(decoded) == 12
    (path,) = cached_files(config)
    assert path.name.endswith(".images")


def test_builds_at_the_same_time_end_in_one_whole_cache(
    config: StreamConfig, decoded: list[int]
) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(folder.load(config).fingerprint))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1
    assert len(cached_files(config)) == 1 and len(decoded) == 12


def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)


def vanishing_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the working folder be there when it is to be made, and gone right after."""
    make = Path.mkdir
    tried: list[Path] = []

    def mkdir(path: Path, *given: Any, **named: Any) -> None:
        if path.name.endswith(".decoding") and not tried:
            tried.append(path)
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        make(path, *given, **named)

    monkeypatch.setattr(Path, "mkdir", mkdir)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks on Windows")
@pytest.mark.parametrize("trouble", [no_locks, vanishing_folder])
def test_a_cache_is_made_without_locks_and_beside_others(
    config: StreamConfig,
    trouble: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trouble(monkeypatch)
    assert len(folder.load(config).train) == 10
    assert len(cached_files(config)) == 1
