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


def test_a_file_is_downloaded_whole_and_the_part_is_gone(target: Path) -> None:
    with serving(Server) as (url, asked):
        download(url, target, MD5, INSTEAD)
    assert target.read_bytes() == CONTENT
    assert asked == [None]
    assert not part_of(target).exists()


def test_a_file_that_is_there_is_not_asked_for(target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"mine")
    with serving(Server) as (url, asked):
        download(url, target, MD5, INSTEAD)
    assert asked == []
    assert [path.name for path in target.parent.iterdir()] == ["file.tar.gz"]


def test_what_an_earlier_start_left_is_gone_on_with(target: Path) -> None:
    leave_part(target, CONTENT[:HALF])
    with serving(Server) as (url, asked):
        download(url, target, MD5, INSTEAD)
    assert asked == [f"bytes={HALF}-"]
    assert target.read_bytes() == CONTENT


def test_a_server_that_ignores_the_range_is_taken_from_the_start(target: Path) -> None:
    leave_part(target, CONTENT[:HALF])
    with serving(IgnoresRange) as (url, _):
        download(url, target, MD5, INSTEAD)
    assert target.read_bytes() == CONTENT


def test_a_connection_that_breaks_off_is_taken_up_again_at_once(target: Path) -> None:
    with serving(BreaksOffOnce) as (url, asked):
        download(url, target, MD5, INSTEAD)
    assert asked == [None, f"bytes={HALF}-"]
    assert target.read_bytes() == CONTENT


def test_a_connection_that_keeps_breaking_off_leaves_a_part_to_go_on_from(target: Path) -> None:
    with (
        serving(AlwaysBreaksOff) as (url, asked),
        pytest.raises(SourceError, match=r"broke off after 3,000 bytes; start again .* --data-dir"),
    ):
        download(url, target, MD5, INSTEAD)
    assert not target.exists()
    assert part_of(target).read_bytes() == CONTENT[: 1000 * len(asked)]


def test_a_complete_part_is_accepted_without_another_byte(target: Path) -> None:
    leave_part(target, CONTENT)
    with serving(Server) as (url, asked):
        download(url, target, MD5, INSTEAD)
    assert asked == [f"bytes={len(CONTENT)}-"]
    assert target.read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_thrown_away(target: Path) -> None:
    leave_part(target, CONTENT + b"more")
    with serving(Server) as (url, asked):
        download(url, target, MD5, INSTEAD)
    assert asked == [f"bytes={len(CONTENT) + 4}-", None]
    assert target.read_bytes() == CONTENT


def test_bytes_with_another_md5_are_refused_and_not_gone_on_with(target: Path) -> None:
    leave_part(target, b"x" * HALF)
    with serving(Server) as (url, _):
        with pytest.raises(SourceError, match=f"expected md5 {MD5}, downloaded"):
            download(url, target, MD5, INSTEAD)
        assert not target.exists()
        download(url, target, MD5, INSTEAD)
    assert target.read_bytes() == CONTENT


def test_a_missing_page_is_said_in_one_sentence(target: Path) -> None:
    with (
        serving(NotFound) as (url, _),
        pytest.raises(
            SourceError, match=r"^downloading http.* HTTP 404 Not Found; give the folder"
        ),
    ):
        download(url, target, MD5, INSTEAD)
    assert not list(target.parent.iterdir())


def test_nobody_answering_is_said_in_one_sentence(target: Path) -> None:
    with serving(Server) as (url, _):
        pass
    with pytest.raises(SourceError, match="Connection refused; give the folder with --data-dir"):
        download(url, target, MD5, INSTEAD)
    assert not list(target.parent.iterdir())


def test_a_part_of_which_something_came_outlives_a_failure(target: Path) -> None:
    leave_part(target, CONTENT[:HALF])
    with serving(NotFound) as (url, _), pytest.raises(SourceError, match="HTTP 404"):
        download(url, target, MD5, INSTEAD)
    assert part_of(target).read_bytes() == CONTENT[:HALF]


def test_who_waits_for_a_download_that_fails_begins_its_own(target: Path) -> None:
    class FailsOnce(Server):
        def do_GET(self) -> None:
            if self.asked:
                super().do_GET()
                return
            self.asked.append(None)
            time.sleep(0.2)
            self.send_error(404)

    refused: list[SourceError] = []

    def try_it(url: str) -> None:
        try:
            download(url, target, MD5, INSTEAD)
        except SourceError as error:
            refused.append(error)

    with serving(FailsOnce) as (url, _):
        threads = [threading.Thread(target=try_it, args=(url,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert target.read_bytes() == CONTENT and len(refused) == 1
    assert not part_of(target).exists()


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


def test_several_downloads_at_once_end_in_one_whole_file(target: Path) -> None:
    with serving(Server) as (url, asked):
        threads = [
            threading.Thread(target=download, args=(url, target, MD5, INSTEAD)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert target.read_bytes() == CONTENT
    assert len(asked) == 1
