"""Downloading against servers on this machine that behave, misbehave and break off."""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from distillmatch.errors import SourceError
from distillmatch.sources import download as download_module
from distillmatch.sources.download import download

CONTENT = bytes(range(256)) * 4096
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
HALF = len(CONTENT) // 2
INSTEAD = "give the folder with --data-dir"


class Server(BaseHTTPRequestHandler):
    """Serves CONTENT, whole or from where it is asked."""

    understands_range = True
    break_off_after: tuple[int, ...] = ()
    asked: list[str | None]

    def do_GET(self) -> None:
        self.asked.append(self.headers["Range"])
        start = 0
        if self.headers["Range"] and self.understands_range:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if start >= len(CONTENT):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        else:
            self.send_response(200)
        rest = CONTENT[start:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        request = len(self.asked) - 1
        sent = self.break_off_after[request] if request < len(self.break_off_after) else len(rest)
        self.wfile.write(rest[:sent])

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test output quiet."""


class IgnoresRange(Server):
    understands_range = False


class BreaksOffOnce(Server):
    break_off_after = (HALF,)


class AlwaysBreaksOff(Server):
    break_off_after = (1000,) * 100


class NotFound(Server):
    def do_GET(self) -> None:
        self.send_error(404)


@contextmanager
def serving(behavior: type[Server]) -> Iterator[tuple[str, list[str | None]]]:
    asked: list[str | None] = []
    handler = type("Handler", (behavior,), {"asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/file.tar.gz", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def without_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "data" / "file.tar.gz"


def part_of(target: Path) -> Path:
    return target.with_name("file.tar.gz.part")


def leave_part(target: Path, content: bytes) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(content)


@pytest.mark.parametrize(
    ("behavior", "part", "asked"),
    [
        (Server, None, [None]),
        (Server, CONTENT[:HALF], [f"bytes={HALF}-"]),
        (IgnoresRange, CONTENT[:HALF], [f"bytes={HALF}-"]),
        (BreaksOffOnce, None, [None, f"bytes={HALF}-"]),
        (Server, CONTENT, [f"bytes={len(CONTENT)}-"]),
        (Server, CONTENT + b"more", [f"bytes={len(CONTENT) + 4}-", None]),
    ],
)
def test_a_file_is_downloaded_whole_whatever_was_left_of_it(
    target: Path, behavior: type[Server], part: bytes | None, asked: list[str | None]
) -> None:
    if part is not None:
        leave_part(target, part)
    with serving(behavior) as (url, requests):
        download(url, target, MD5, INSTEAD)
        download(url, target, MD5, INSTEAD)  # it is there
    assert requests == asked
    assert target.read_bytes() == CONTENT
    assert not part_of(target).exists()


def test_a_connection_that_keeps_breaking_off_leaves_a_part_to_resume(target: Path) -> None:
    with (
        serving(AlwaysBreaksOff) as (url, asked),
        pytest.raises(SourceError, match=r"broke off after 3,000 bytes; start again .* --data-dir"),
    ):
        download(url, target, MD5, INSTEAD)
    assert not target.exists()
    assert part_of(target).read_bytes() == CONTENT[: 1000 * len(asked)]


def test_bytes_with_another_md5_are_refused_and_not_resumed(target: Path) -> None:
    leave_part(target, b"x" * HALF)
    with serving(Server) as (url, _):
        with pytest.raises(SourceError, match=f"expected md5 {MD5}, downloaded"):
            download(url, target, MD5, INSTEAD)
        assert not target.exists()
        download(url, target, MD5, INSTEAD)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("part", [None, CONTENT[:HALF]])
def test_a_failure_is_one_sentence_and_keeps_what_has_come(
    target: Path, part: bytes | None
) -> None:
    if part:
        leave_part(target, part)
    with serving(NotFound) as (url, _):
        sentence = r"^downloading http.* HTTP 404 Not Found; give the folder"
        with pytest.raises(SourceError, match=sentence):
            download(url, target, MD5, INSTEAD)
    with pytest.raises(SourceError, match="Connection refused; give the folder with --data-dir"):
        download(url, target, MD5, INSTEAD)
    assert [path.read_bytes() for path in target.parent.iterdir()] == ([part] if part else [])


def test_a_silent_server_is_given_up(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    class Silent(Server):
        def do_GET(self) -> None:
            released.wait(5)

    monkeypatch.setattr(download_module, "TIMEOUT", 0.1)
    with serving(Silent) as (url, _):
        try:
            with pytest.raises(SourceError, match="broke off after 0 bytes"):
                download(url, target, MD5, INSTEAD)
        finally:
            released.set()


@pytest.mark.parametrize("fails_first", [False, True])
def test_of_several_downloads_at_once_one_works_and_the_others_wait(
    target: Path, fails_first: bool
) -> None:
    class Slow(Server):
        def do_GET(self) -> None:
            time.sleep(0.2)
            if fails_first and not self.asked:
                self.asked.append(None)
                self.send_error(404)
            else:
                super().do_GET()

    refused: list[SourceError] = []

    def try_it(url: str) -> None:
        try:
            download(url, target, MD5, INSTEAD)
        except SourceError as error:
            refused.append(error)

    with serving(Slow) as (url, asked):
        threads = [threading.Thread(target=try_it, args=(url,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert target.read_bytes() == CONTENT and not part_of(target).exists()
    assert (len(refused), len(asked)) == ((1, 2) if fails_first else (0, 1))
