"""Features of images, kept by their content so that no image is paid for twice.

They lie in one SQLite file in the user's cache, which any number of processes may use. It can be
removed at any time; where it cannot be used, features are computed as if there were none.
"""

import hashlib
import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from distillmatch.files import user_cache

Features = NDArray[np.float32]
Result = TypeVar("Result")

FILE = "features.sqlite"
MOST_BYTES = 512 * 2**20
"""Size of the file beyond which the features that came first, a fifth, are dropped."""
WAIT_SECONDS = 5.0
_FORM = (
    "CREATE TABLE IF NOT EXISTS features (number INTEGER PRIMARY KEY, key BLOB UNIQUE, row BLOB)"
)
_SIZE = (
    "SELECT (page_count - freelist_count) * page_size "
    "FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()"
)
_DROP = (
    "DELETE FROM features WHERE number <= "
    "(SELECT min(number) + (max(number) - min(number)) / 5 FROM features)"
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
        """Return a row, if it is there."""

        def read(file: sqlite3.Connection) -> Features | None:
            found = file.execute("SELECT row FROM features WHERE key = ?", (key,)).fetchone()
            return None if found is None else np.frombuffer(found[0], "<f4").astype(np.float32)

        return self._use(read)

    def put(self, rows: Mapping[bytes, Features]) -> None:
        """Keep some rows; if the file is too large, the ones that came first go."""

        def write(file: sqlite3.Connection) -> None:
            content = [(key, row.astype("<f4").tobytes()) for key, row in rows.items()]
            with file:
                file.executemany(
                    "INSERT OR REPLACE INTO features (key, row) VALUES (?, ?)", content
                )
                if file.execute(_SIZE).fetchone()[0] > self.most_bytes:
                    file.execute(_DROP)

        self._use(write)

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    def _use(self, work: Callable[[sqlite3.Connection], Result]) -> Result | None:
        """Return the result of some work on the open file, or None where it cannot be used.

        A damaged file is removed, so that the next start has a new one.
        """
        with self._lock:
            try:
                if self._usable and self._file is None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self._file = sqlite3.connect(self.path, WAIT_SECONDS, check_same_thread=False)
                    # What a crash of the machine loses can be computed again.
                    self._file.execute("PRAGMA synchronous = OFF")
                    self._file.execute(_FORM)
                return None if self._file is None else work(self._file)
            except (sqlite3.Error, OSError, ValueError) as error:
                self._usable = False
                if self._file is not None:
                    self._file.close()
                    self._file = None
                if type(error) is sqlite3.DatabaseError:
                    with suppress(OSError):
                        self.path.unlink()
                return None


def content_key(*parts: bytes) -> bytes:
    """Return the key of a content: a hash in which the parts cannot run into each other."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
