"""Features of images, kept by their content so that no image is paid for twice.

They lie in one SQLite file in the user's cache, which any number of processes may use. It can be
removed at any time; where it cannot be used, features are computed as if there were none.
"""

import hashlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distillmatch.files import user_cache

Features = NDArray[np.float32]

FILE = "features.sqlite"
MOST_BYTES = 512 * 2**20
"""Size of the rows; beyond it, those that came first are dropped."""
WAIT_SECONDS = 5.0
_FORM = "CREATE TABLE IF NOT EXISTS rows (key BLOB UNIQUE, row BLOB)"


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
        """Return a row, if it is there."""
        with self._opened() as file:
            found = file.execute("SELECT row FROM rows WHERE key = ?", (key,)).fetchone()
            return None if found is None else np.frombuffer(found[0], "<f4").astype(np.float32)
        return None

    def put(self, rows: Mapping[bytes, Features]) -> None:
        """Keep some rows; if the file is too large, the ones that came first go."""
        with self._opened() as file, file:
            content = [(key, np.asarray(row, "<f4").tobytes()) for key, row in rows.items()]
            file.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", content)
            size = max(len(key) + len(row) for key, row in content)
            file.execute(
                "DELETE FROM rows WHERE rowid <= (SELECT max(rowid) FROM rows) - ?",
                (self.most_bytes // size,),
            )

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file; do nothing where it cannot be used, and remove it where it is damaged."""
        with self._lock, suppress(sqlite3.Error, OSError, ValueError):
            ...


def content_key(*parts: bytes) -> bytes:
    """Return the key of a content: a hash in which the parts cannot run into each other."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
