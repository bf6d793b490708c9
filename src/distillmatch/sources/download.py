"""Download one published file: with progress, resumable, checked by its md5."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import BinaryIO

from distillmatch.errors import SourceError, explain_disk_errors
from distillmatch.files import locked_file, open_file
from distillmatch.terminal import show_progress

TIMEOUT = 30.0
"""Seconds without a byte before a connection counts as broken."""
_TRIES = 3
_BLOCK = 2**18
_RANGE_NOT_SATISFIABLE = 416


def file_md5(path: Path) -> str:
    """Return the md5 of a file's bytes."""
    with open_file(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def download(url: str, path: Path, md5: str, instead: str) -> None:
    """Download `url` to `path`, unless it is there; one of several processes does it.

    What has arrived is kept beside it with the ending `.part`, and the next call resumes there.
    `instead` tells a user without network what to do.
    """
    part = path.with_name(f"{path.name}.part")
    with explain_disk_errors(f"downloading {url}", path), locked_file(part) as file:
        try:
            if not path.exists():
                _fetch(url, file, md5, instead)
                part.replace(path)
        finally:
            if file.seek(0, os.SEEK_END) == 0:
                part.unlink(missing_ok=True)


def _fetch(url: str, file: BinaryIO, md5: str, instead: str) -> None:
    """Bring all of `url` into a file that may hold a part of it."""
    if not any(_fetch_rest(url, file, instead) for _ in range(_TRIES)):
        raise SourceError(
            f"downloading {url} broke off after {file.tell():,} bytes; start again to resume, "
            f"or {instead}"
        )
    file.flush()
    os.fsync(file.fileno())
    found = file_md5(Path(file.name))
    if found != md5:
        file.truncate(0)
        raise SourceError(
            f"{url}: expected md5 {md5}, downloaded {found}; start again, or {instead}"
        )


def _fetch_rest(url: str, file: BinaryIO, instead: str) -> bool:
    """Append what is missing; return whether the file is complete now."""
    have = file.seek(0, os.SEEK_END)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            if not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                have = file.truncate(0)  # the server sends the whole file
            length = response.headers.get("Content-Length")
            total = None if length is None else have + int(length)
            with show_progress("downloading", total, in_bytes=True) as progress:
                while block := _read(response):
                    file.write(block)
                    have += len(block)
                    progress(have)
            return total is None or have >= total
    except urllib.error.HTTPError as error:
        if error.code != _RANGE_NOT_SATISFIABLE:
            raise SourceError(
                f"downloading {url} failed: HTTP {error.code} {error.reason}; {instead}"
            ) from None
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return True
        file.truncate(0)
        return False
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise SourceError(f"downloading {url} failed: {reason}; {instead}") from None
    except (TimeoutError, ConnectionError, http.client.HTTPException):
        return False


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(_BLOCK)
    except OSError as error:  # of the network, not of the disk
        raise ConnectionError(str(error)) from error
