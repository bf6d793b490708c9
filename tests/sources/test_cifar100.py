"""CIFAR-100 from folders and archives; only published bytes are ever unpickled."""

import hashlib
import io
import pickle
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distillmatch.config import StreamConfig
from distillmatch.errors import ConfigError, SourceError
from distillmatch.sources import Dataset, cifar100


def md5_of(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture(autouse=True)
def without_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def fake_files() -> dict[str, bytes]:
    """Make files like the published ones, with one image a class in each part."""
    random = np.random.default_rng(0)
    fine = list(range(100))
    coarse = [label // 5 for label in fine]
    part = {b"fine_labels": fine, b"coarse_labels": coarse}
    meta = {
        b"fine_label_names": [f"fine_{label}".encode() for label in fine],
        b"coarse_label_names": [f"coarse_{label}".encode() for label in range(20)],
    }
    images = [random.integers(0, 256, (100, 3072), dtype=np.uint8) for _ in range(2)]
    return {
        "train": pickle.dumps({**part, b"data": images[0]}),
        "test": pickle.dumps({**part, b"data": images[1]}),
        "meta": pickle.dumps(meta),
    }


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    contents = fake_files()
    md5s = {name: md5_of(content) for name, content in contents.items()}
    monkeypatch.setattr(cifar100, "FILE_MD5S", md5s)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return contents


def extract(files: dict[str, bytes], folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def pack(files: dict[str, bytes], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def publish(monkeypatch: pytest.MonkeyPatch, archive: Path) -> Path:
    """Let an archive be the published one: no other is unpacked."""
    monkeypatch.setattr(cifar100, "ARCHIVE_MD5", md5_of(archive.read_bytes()))
    return archive


def load(data_dir: Path | None) -> Dataset:
    return cifar100.load(StreamConfig(source="cifar100", data_dir=data_dir))


def test_the_same_data_set_comes_from_each_place_it_may_lie(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extracted = extract(files, tmp_path / "a" / "cifar-100-python")
    archive = publish(monkeypatch, pack(files, tmp_path / "b" / "cifar-100-python.tar.gz"))
    places = (extracted, extracted.parent, archive, archive.parent)
    fingerprints = {load(place).fingerprint for place in places}
    assert len(fingerprints) == 1


def test_pixels_and_parents_are_those_of_the_files(files: dict[str, bytes], tmp_path: Path) -> None:
    dataset = load(extract(files, tmp_path / "data"))
    stored = pickle.loads(files["train"])[b"data"]
    for image, row, column, channel in [(0, 0, 0, 0), (3, 5, 7, 1), (99, 31, 30, 2)]:
        pixel = dataset.train.images[image, row, column, channel]
        assert pixel == stored[image, channel * 1024 + row * 32 + column]
    tree = dataset.tree
    assert tree is not None
    assert tree.parent_of_class == tuple(label // 5 for label in range(100))
    assert len(tree.super_class_names) == 8
    assert tree.parents_of_super_class(4) == (8, 11, 12, 15, 16)  # land vertebrates


def test_missing_folders_and_files_are_named(files: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="missing: expected a folder that holds cifar-100-python"):
        load(tmp_path / "missing")
    folder = extract(files, tmp_path / "data" / "cifar-100-python")
    (folder / "meta").unlink()
    with pytest.raises(SourceError, match=r"cifar-100-python: expected .* missing meta"):
        load(tmp_path / "data")


class Trap:
    """Pickled, it shouts when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (pytest.fail, ("a file with another md5 was unpickled",))


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_with_another_md5_is_not_unpickled(
    files: dict[str, bytes], tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = cifar100.FILE_MD5S["train"]
    files["train"] = pickle.dumps(Trap())
    place = pack(files, tmp_path / "a.tar.gz") if packed else extract(files, tmp_path / "data")
    if packed:
        publish(monkeypatch, place)
    found = md5_of(files["train"])
    with pytest.raises(SourceError, match=f"train: expected .* {expected}, found md5 {found}"):
        load(place)


def test_another_archive_or_image_size_is_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"with md5 {cifar100.ARCHIVE_MD5}, found md5"):
        load(pack(files, tmp_path / "a.tar.gz"))
    with pytest.raises(ConfigError, match="image_size must be 32 with source 'cifar100', not 64"):
        cifar100.load(StreamConfig(source="cifar100", image_size=64))


CONTENT = bytes(range(256)) * 1024


class Server(BaseHTTPRequestHandler):
    """Serves a file, of which only so many bytes come, or an error."""

    status, content, sent = 200, CONTENT, None
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content[: self.sent])

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test output quiet."""


@contextmanager
def serving(**behavior: Any) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = type("Handler", (Server,), {"asked": asked, **behavior})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/file.tar.gz", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("given", [False, True])
def test_what_is_missing_is_downloaded_once_and_unpacked(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    archive = publish(monkeypatch, pack(files, tmp_path / "published.tar.gz"))
    folder = tmp_path / ("data" if given else "user-cache/distillmatch")
    folder.mkdir(parents=True)

    def start(_: int) -> str:
        return load(folder if given else None).fingerprint

    with serving(content=archive.read_bytes()) as (url, asked):
        monkeypatch.setattr(cifar100, "URL", url)
        with ThreadPoolExecutor(3) as pool:
            found = [*pool.map(start, range(3)), start(3)]
    assert len(asked) == 1, "the others waited"
    assert len(set(found)) == 1
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {"cifar-100-python.tar.gz", *(f"cifar-100-python/{name}" for name in files)}


@pytest.mark.parametrize(
    ("behavior", "md5", "sentence"),
    [
        ({"status": 404}, "", r"^downloading http.* failed: HTTP Error 404: Not Found; start"),
        ({"sent": 1000}, "", "broke off after 1,000 bytes; start again, or give a folder that"),
        ({}, "another", f"expected md5 another, downloaded {md5_of(CONTENT)}; start again"),
    ],
)
def test_a_failed_download_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, behavior: dict[str, Any], md5: str, sentence: str
) -> None:
    with serving(**behavior) as (url, _), pytest.raises(SourceError, match=sentence):
        cifar100.download(url, tmp_path / "file.tar.gz", md5)
    with pytest.raises(SourceError, match="failed: Connection refused; start again"):
        cifar100.download(url, tmp_path / "file.tar.gz", md5)
    assert not list(tmp_path.iterdir())
