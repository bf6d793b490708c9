"""One process per folder: a lock that the system releases however its process dies."""

import contextlib
import os
from pathlib import Path

from filelock import FileLock, Timeout

from distillmatch.errors import DiskError, LockedError, explain_disk_errors

NAME = "run.lock"
MOMENT_SECONDS = 0.5
"""How long to wait for a lock: `is_held` takes it for a moment too."""


class FolderLock:
    """Holds `run.lock` in a folder, with the number of its process for people to read.

    A folder that is made for it is removed on release if nothing else is in it.
    """

    def __init__(self, folder: Path, wait_seconds: float = MOMENT_SECONDS) -> None:
        self.folder, self.path = folder, folder / NAME
        self._made = not folder.exists()
        self._lock = FileLock(self.path, wait_seconds, thread_local=False, fallback_to_soft=False)
        with explain_disk_errors("locking the folder", self.path):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(poll_interval=MOMENT_SECONDS / 100)
            except Timeout:
                number = ""
                with contextlib.suppress(OSError):  # it has just been removed
                    number = f" ({self.path.read_text().strip()})"
                raise LockedError(
                    f"{folder}: a process{number} is running in this folder; wait for it or choose "
                    "another folder"
                ) from None
        with contextlib.suppress(OSError):  # on a full disk the lock holds without the number
            self.path.write_text(f"{os.getpid()}\n")

    def release(self) -> None:
        """Remove the file while it is locked: who has opened it meanwhile makes a new one."""
        self.path.unlink(missing_ok=True)
        self._lock.release()
        if self._made:
            with contextlib.suppress(OSError):
                self.folder.rmdir()


def is_held(folder: Path) -> bool:
    """Return whether a process works in a folder."""
    if not (folder / NAME).exists():
        return False
    try:
        FolderLock(folder, wait_seconds=0).release()
    except LockedError:
        return True
    except DiskError:
        return False
    return False
