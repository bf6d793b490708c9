"""The cache is believed only when it is whole, and never half written."""

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from PIL import Image

from distillmatch.config import StreamConfig
from distillmatch.errors import DiskError
from distillmatch.sources import ClassTree, Dataset, decoding, folder
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


def write(path: Path, key: str = "key") -> Dataset:
    return write_cache(path, key, PIXELS, CONTENTS, "testing")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written = write(tmp_path / "cache")
    dataset = read_cache(tmp_path / "cache", "key")
    assert dataset is not None
    assert isinstance(dataset.train.images, np.memmap)
    assert np.array_equal(dataset.train.images, PIXELS[[5, 0, 2]])
    assert np.array_equal(dataset.test.images, PIXELS[[4, 1]])
    assert dataset.train.labels.tolist() == [1, 0, -1]
    assert dataset.test.labels.tolist() == [0, 1]
    assert dataset.class_names == ("ä", "b")
    assert dataset.tree == TREE
    assert dataset.label_fraction == 0.5
    assert dataset.problems == ("one: wrong",)
    assert dataset.known_fingerprint == written.known_fingerprint


def test_a_test_part_may_be_empty(tmp_path: Path) -> None:
    empty = Selection(np.array([], dtype=np.intp), np.array([], dtype=np.int64))
    contents = Contents("made", CONTENTS.train, empty, ("a", "b"))
    dataset = write_cache(tmp_path / "cache", "key", PIXELS, contents, "testing")
    assert len(dataset.test) == 0
    assert len(dataset.train) == 3


def test_the_images_cannot_be_changed_by_accident(tmp_path: Path) -> None:
    dataset = write(tmp_path / "cache")
    with pytest.raises(ValueError, match="read-only"):
        dataset.train.images[0] = 0


def test_another_key_is_not_believed(tmp_path: Path) -> None:
    write(tmp_path / "cache")
    assert read_cache(tmp_path / "cache", "other") is None


def test_keys_differ_when_anything_differs() -> None:
    keys = [cache_key(1, ("a", 2)), cache_key(1, ("a", 3)), cache_key(2, ("a", 2)), cache_key(1)]
    assert len(set(keys)) == 4
    assert cache_key("\udcff") != cache_key("\udcfe")


def test_a_cache_cut_off_anywhere_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    write(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert read_cache(path, "key") is None


def test_a_cache_with_a_changed_description_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    write(path)
    whole = path.read_bytes()
    for position in range(5 * 8 * 8 * 3, len(whole), 5):
        changed = bytearray(whole)
        changed[position] ^= 1
        path.write_bytes(changed)
        assert read_cache(path, "key") is None


@pytest.mark.parametrize("change", [lambda whole: whole + b"x", lambda whole: b"x" + whole])
def test_a_cache_of_another_size_is_not_believed(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "cache"
    write(path)
    path.write_bytes(change(path.read_bytes()))
    assert read_cache(path, "key") is None


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 5000, json.dumps({}).encode() * 99])
def test_a_foreign_file_is_not_believed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cache").write_bytes(content)
    assert read_cache(tmp_path / "cache", "key") is None


def test_a_folder_where_the_cache_should_be_is_said(tmp_path: Path) -> None:
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


class FullDisk:
    """A file on a disk that has room for so many bytes only."""

    def __init__(self, file: IO[bytes], room: int) -> None:
        self._file = file
        self._room = room

    def write(self, content: bytes) -> int:
        self._room -= memoryview(content).nbytes
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write(content)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def __enter__(self) -> "FullDisk":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def leave_room(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Let the next named file have room for so many bytes."""
    fdopen: Callable[..., IO[bytes]] = os.fdopen
    monkeypatch.setattr(os, "fdopen", lambda *arguments: FullDisk(fdopen(*arguments), room))


@pytest.mark.parametrize("room", [0, 4 * 3072, 12 * 3072, 12 * 3072 + 10])
def test_a_disk_that_fills_up_is_said_and_nothing_is_left(
    config: StreamConfig, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    leave_room(monkeypatch, room)
    with pytest.raises(DiskError, match=r"no space left on the disk of .* while decoding"):
        folder.load(config)
    assert cached_files(config) == []
    monkeypatch.undo()
    assert len(folder.load(config).train) == 10


def test_a_disk_that_fills_up_while_decoding_is_said_and_nothing_is_left(
    config: StreamConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool: Any = decoding._Spool
    monkeypatch.setattr(
        decoding,
        "_Spool",
        lambda images, *others: spool(FullDisk(images, 5000), *others),
    )
    with pytest.raises(DiskError, match=r"no space left on the disk of .* while decoding"):
        folder.load(config)
    assert cached_files(config) == []


def test_a_disk_that_fails_at_the_last_moment_is_said_and_nothing_is_left(
    config: StreamConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(DiskError, match="no space left on the disk"):
        folder.load(config)
    assert cached_files(config) == []


def test_an_older_cache_survives_a_full_disk(
    config: StreamConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.load(config)
    (path,) = cached_files(config)
    before = path.read_bytes()
    assert config.data_dir is not None
    Image.new("RGB", (32, 32)).save(config.data_dir / "a" / "new.png")
    leave_room(monkeypatch, 0)
    with pytest.raises(DiskError, match="no space left"):
        folder.load(config)
    assert cached_files(config) == [path]
    assert path.read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="limits a Unix process")
def test_a_real_limit_on_the_file_size_leaves_nothing(config: StreamConfig) -> None:
    script = """
import resource, sys
from pathlib import Path
from distillmatch.config import StreamConfig
from distillmatch.errors import DiskError
from distillmatch.sources import folder
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
try:
    folder.load(StreamConfig(source="folder", data_dir=sys.argv[1], cache_dir=sys.argv[2]))
except DiskError as error:
    print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", script, str(config.data_dir), str(config.cache_dir)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "File too large while decoding the images into the cache" in result.stdout
    assert cached_files(config) == []


def test_an_unwritable_cache_folder_is_said(config: StreamConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DiskError, match="while decoding the images into the cache"):
        folder.load(config.replace(cache_dir=tmp_path / "file" / "cache"))


@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may write anywhere")
def test_a_forbidden_cache_folder_is_said(config: StreamConfig, tmp_path: Path) -> None:
    (tmp_path / "forbidden").mkdir(mode=0o500)
    with pytest.raises(DiskError, match="Permission denied while decoding"):
        folder.load(config.replace(cache_dir=tmp_path / "forbidden"))


def test_a_cancelled_build_leaves_only_what_the_next_one_goes_on_from(
    config: StreamConfig, monkeypatch: pytest.MonkeyPatch, decoded: list[int]
) -> None:
    def fsync(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(KeyboardInterrupt):
        folder.load(config)
    (left,) = cached_files(config)
    assert left.name.endswith(".decoding")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    assert len(folder.load(config).train) == 10
    assert len(decoded) == 12
    (path,) = cached_files(config)
    assert path.name.endswith(".images")


def test_builds_at_the_same_time_end_in_one_whole_cache(config: StreamConfig) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(folder.load(config).fingerprint))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert len(cached_files(config)) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks on Windows")
def test_a_cache_can_be_made_where_the_file_system_knows_no_locks(
    config: StreamConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        asked.append(operation)
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    assert len(folder.load(config).train) == 10
    assert asked and len(cached_files(config)) == 1


def test_a_workshop_that_another_build_leaves_in_this_moment_is_made_anew(
    config: StreamConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when it was to be made, and gone when it was looked at."""
    make = Path.mkdir
    tried: list[Path] = []

    def mkdir(path: Path, *given: Any, **named: Any) -> None:
        if path.name.endswith(".decoding") and not tried:
            tried.append(path)
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        make(path, *given, **named)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert len(folder.load(config).train) == 10
    assert tried
