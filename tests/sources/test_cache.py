"""The cache is used only if it is whole, and nothing half written is left."""

import errno
import os
import threading
from pathlib import Path

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
CONTENTS = Contents(
    name="made",
    class_names=("ä", "b"),
    tree=ClassTree((0, 1), (0, 0), ("left", "right"), ("all",)),
    label_fraction=0.5,
    problems=("one: wrong",),
)
TRAIN: Selection = np.array([5, 0, 2]), np.array([1, 0, -1])
TEST: Selection = np.array([4, 1]), np.array([0, 1])


def write(path: Path, test: Selection = TEST) -> Dataset:
    return write_cache(path, "key", PIXELS, CONTENTS, TRAIN, test, "testing")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written = write(tmp_path / "cache")
    dataset = read_cache(tmp_path / "cache", "key")
    assert dataset is not None
    assert isinstance(dataset.train.images, np.memmap)
    assert np.array_equal(dataset.train.images, PIXELS[[5, 0, 2]])
    assert np.array_equal(dataset.test.images, PIXELS[[4, 1]])
    assert dataset.train.labels.tolist() == [1, 0, -1]
    assert dataset.test.labels.tolist() == [0, 1]
    for key, value in CONTENTS:
        assert getattr(dataset, key) == value
    assert dataset.known_fingerprint == written.known_fingerprint
    with pytest.raises(ValueError, match="read-only"):
        dataset.train.images[0] = 0
    assert read_cache(tmp_path / "cache", "other") is None
    assert not len(write(tmp_path / "cache", (TEST[0][:0], TEST[1][:0])).test)


def test_keys_differ_when_anything_differs() -> None:
    keys = [cache_key(1, ("a", 2)), cache_key(1, ("a", 3)), cache_key(2, ("a", 2)), cache_key(1)]
    assert len({*keys, cache_key("\udcff"), cache_key("\udcfe")}) == 6


def test_a_damaged_cache_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    write(path)
    whole = path.read_bytes()
    changed = [whole + b"x", b"x" + whole, b"hello", b"\0" * 5000, b"{}" * 99]
    changed += [whole[:length] for length in range(0, len(whole), 7)]
    for place in range(5 * 8 * 8 * 3, len(whole), 5):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        changed.append(bytes(flipped))
    for content in changed:
        path.write_bytes(content)
        assert read_cache(path, "key") is None
    path.unlink()
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)
        assert read_cache(path, "key") is None
        path.unlink()
    path.mkdir()
    assert read_cache(path, "key") is None
    with pytest.raises(DiskError, match=r"cache: .* while testing"):
        write(path)


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
def test_a_full_disk_is_reported_and_leaves_what_was_there(
    config: StreamConfig, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """First the decoded images are saved, then the cache."""
    folder.load(config)
    (path,) = cached_files(config)
    before = path.read_bytes()
    assert config.data_dir is not None
    Image.new("RGB", (32, 32)).save(config.data_dir / "a" / "new.png")
    fail_sync(monkeypatch, number, FULL)
    with pytest.raises(DiskError, match=r"no space left on the disk of .* while decoding"):
        folder.load(config)
    assert cached_files(config) == [path] and path.read_bytes() == before
    assert len(folder.load(config).train) == 11


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


def test_a_cache_is_made_where_there_are_no_locks(
    config: StreamConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    assert len(folder.load(config).train) == 10
    assert len(cached_files(config)) == 1
