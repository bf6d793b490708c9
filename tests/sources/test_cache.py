"""The cache is used only if it is whole, and nothing half written is left."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from distillmatch.config import StreamConfig
from distillmatch.errors import DiskError
from distillmatch.sources import Dataset, folder
from distillmatch.sources.cache import Plan, cache_folder, read_cache, write_cache
from distillmatch.sources.dataset import fingerprint

TRAIN, TEST = [7, 2, -1, 5], [2, 5, 7]


def write(tmp_path: Path, test: list[int] = TEST) -> Dataset:
    """Cache images of one gray each, of which the first is none."""
    files = [tmp_path / f"{number}.png" for number in range(len(TRAIN) + len(test))]
    for number, file in enumerate(files):
        Image.new("RGB", (8, 8), (number, number, number)).save(file)
    files[0].write_text("no image")

    pairs = list(zip(map(str, files), [*TRAIN, *test], strict=True))
    names = [f"class {number}" for number in range(8)]
    plan = Plan("made", pairs, len(TRAIN), names, 0.5)
    return write_cache(tmp_path / "cache", "key", 8, plan, "testing")


def test_what_is_written_is_read_back_without_bad_files_and_their_class(tmp_path: Path) -> None:
    written = write(tmp_path)
    dataset = read_cache(tmp_path / "cache", "key")
    assert dataset is not None and isinstance(dataset.train.images, np.memmap)
    assert dataset.train.images[:, 3, 3, 1].tolist() == [1, 2, 3]
    assert dataset.test.images[:, 3, 3, 1].tolist() == [4, 5]
    assert dataset.class_names == ("class 2", "class 5")
    assert dataset.train.labels.tolist() == [0, -1, 1] and dataset.test.labels.tolist() == [0, 1]
    assert dataset.problems == (f"{tmp_path}/0.png: not an image in a format that can be read",)
    assert (dataset.name, dataset.label_fraction) == ("made", 0.5)
    computed = fingerprint((dataset.train, dataset.test), dataset.class_names, None)
    assert dataset.known_fingerprint == written.known_fingerprint == computed
    with pytest.raises(ValueError, match="read-only"):
        dataset.train.images[0] = 0
    assert read_cache(tmp_path / "cache", "other") is None
    assert not len(write(tmp_path, []).test)


def test_a_damaged_cache_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    count = len(write(tmp_path).train) + len(TEST) - 1
    whole = path.read_bytes()
    changed = [whole + b"x", b"x" + whole, b"hello", b"\0" * 5000, b"{}" * 99]
    changed += [whole[:length] for length in range(0, len(whole), 7)]
    for place in range(count * 8 * 8 * 3, len(whole), 5):
        changed.append(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
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
        write(tmp_path)


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
def config(data: Path, tmp_path: Path) -> StreamConfig:
    return StreamConfig(source="folder", data_dir=data, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interrupted_build_leaves_what_was_there(
    config: StreamConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    folder.load(config)
    (path,) = (tmp_path / "cache").iterdir()
    before = path.read_bytes()
    Image.new("RGB", (32, 32)).save(tmp_path / "data" / "cat" / "new.png")

    def fsync(descriptor: int) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        expected = type(error) if isinstance(error, KeyboardInterrupt) else DiskError
        with pytest.raises(expected, match=r"|no space left on the disk of .* while decoding"):
            folder.load(config)
    assert list((tmp_path / "cache").iterdir()) == [path] and path.read_bytes() == before
    dataset = folder.load(config)
    assert len(dataset.train) + len(dataset.test) == 31


@pytest.mark.parametrize("locks", [True, False])
def test_builds_at_the_same_time_end_in_one_whole_cache(
    config: StreamConfig,
    tmp_path: Path,
    decoded: list[int],
    monkeypatch: pytest.MonkeyPatch,
    locks: bool,
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    if not locks:
        monkeypatch.setattr("fcntl.flock", flock)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: folder.load(config).fingerprint, range(4)))
    assert len(set(found)) == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert len(decoded) == 30 or not locks
