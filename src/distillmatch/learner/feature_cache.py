"""Features of images, kept by their content so that no image is paid for twice.

They lie in one SQLite file in the user's cache, which any number of processes may use. It can be
removed at any time; where it cannot be used, features are computed as if there were none.
"""

import hashlib
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distillmatch.files import user_cache

Features = NDArray[np.float32]

FILE = "features.sqlite"
MOST_BYTES = 512 * 2**20
"""Size of the file from which on the features that came first are dropped."""
DROPPED = 0.2
"""Share of the rows that is dropped at once."""
WAIT_SECONDS = 5.0
_SEAL_BYTES = 8
_FORM = (
    "CREATE TABLE IF NOT EXISTS features (number INTEGER PRIMARY KEY, key BLOB UNIQUE, row BLOB)"
)


class FeatureCache:
    """The rows of features in a file, by a key of the image's content and the network's."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path, self.most_bytes = path, most_bytes
        self._lock = threading.Lock()
        self._file: sqlite3.Connection | None = None
        self._usable = True

    @classmethod
    def of_user(cls) -> "FeatureCache | None":
        """Return the cache in the user's folder, if there is such a folder."""
        folder = user_cache()
        return None if folder is None else cls(folder / FILE)

    def get(self, key: bytes) -> Features | None:
        """Return a row, if it is there and whole."""
        with self._lock:
            try:
                found = self._opened().execute("SELECT row FROM features WHERE key = ?", (key,))
                row = found.fetchone()
            except (sqlite3.Error, OSError) as error:
                self._give_up(error)
                return None
        return None if row is None else _unsealed(key, row[0])

    def put(self, rows: Mapping[bytes, Features]) -> None:
        """Keep some rows; if the file is too large, the ones that came first go."""
        sealed = [(key, _sealed(key, row)) for key, row in rows.items()]
        with self._lock:
            try:
                file = self._opened()
                with file:
                    statement = "INSERT OR REPLACE INTO features (key, row) VALUES (?, ?)"
                    file.executemany(statement, sealed)
                    self._drop_first(file)
            except (sqlite3.Error, OSError) as error:
                self._give_up(error)

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    def _opened(self) -> sqlite3.Connection:
        if not self._usable:
            raise sqlite3.OperationalError("the cache cannot be used")
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(self.path, WAIT_SECONDS, check_same_thread=False)
            # What a crash of the machine loses can be computed again.
            self._file.execute("PRAGMA synchronous = OFF")
            self._file.execute(_FORM)
        return self._file

    def _drop_first(self, file: sqlite3.Connection) -> None:
        pages, free, size = (
            int(file.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        if (pages - free) * size > self.most_bytes:
            first, last = file.execute("SELECT min(number), max(number) FROM features").fetchone()
            end = first + max(1, int(DROPPED * (last - first)))
            file.execute("DELETE FROM features WHERE number < ?", (end,))

    def _give_up(self, error: Exception) -> None:
        """Go on without the cache; a damaged file is removed, so that the next start has one."""
        self._usable = False
        if self._file is not None:
            self._file.close()
            self._file = None
        damaged = isinstance(error, sqlite3.DatabaseError)
        if damaged and not isinstance(error, sqlite3.OperationalError):
            with suppress(OSError):
                self.path.unlink()


def content_key(*parts: bytes) -> bytes:
    """Return the key of a content: a hash in which the parts cannot run into each other."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _sealed(key: bytes, row: Features) -> bytes:
    content = np.ascontiguousarray(row, "<f4").tobytes()
    return hashlib.blake2b(key + content, digest_size=_SEAL_BYTES).digest() + content


def _unsealed(key: bytes, row: object) -> Features | None:
    if not isinstance(row, bytes):
        return None
    seal, content = row[:_SEAL_BYTES], row[_SEAL_BYTES:]
    if hashlib.blake2b(key + content, digest_size=_SEAL_BYTES).digest() != seal:
        return None
    return np.frombuffer(content, "<f4").astype(np.float32)
