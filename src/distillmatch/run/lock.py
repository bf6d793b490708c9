"""One process a folder: a lock that the system takes back when its holder dies, however it dies."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from distillmatch.errors import LockedError, explain_disk_errors
from distillmatch.files import lies_at

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

NAME = "run.lock"
MOMENT_SECONDS = 0.5
Answer = TypeVar("Answer")


class FolderLock:
    """Holds `run.lock` in a folder, with the process's number in it for people to read.

    The file being there means nothing: what counts is the lock on it, which does not outlive the
    process. A file that was left behind is taken over, and `tell` is given a sentence about it.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.path = folder / NAME
        self._descriptor = self._acquire(tell)

    def _acquire(self, tell: Callable[[str], None]) -> int:
        while True:
            with explain_disk_errors("locking the folder", self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            holder = _number_in(descriptor)
            # `is_held` takes the lock for a moment, and who has just taken it is about to write.
            if not _soon(_lock, descriptor):
                holder = holder or _soon(_number_in, descriptor)
                os.close(descriptor)
                who = f"another process ({holder or 'just started'})"
                if holder == str(os.getpid()):
                    who = "another run of this process"
                raise LockedError(
                    f"{self.path.parent}: {who} is running in this folder; wait for it or choose "
                    "another"
                )
            if lies_at(descriptor, self.path):
                break
            os.close(descriptor)  # its last holder removed the file after we had opened it
        if holder:
            tell(f"process {holder} left {self.path.parent} without an end; its lock is taken over")
        with contextlib.suppress(OSError):  # on a full disk the lock holds without the number
            os.truncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        return descriptor

    def release(self) -> None:
        """Remove the file and give the lock back."""
        if sys.platform == "win32":
            os.close(self._descriptor)
            self.path.unlink(missing_ok=True)
        else:
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)


def _number_in(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, 32).decode("ascii", "replace").strip()


def _soon(ask: Callable[[int], Answer], descriptor: int) -> Answer:
    """Return what is answered within a moment: the first answer that is not empty, or the last."""
    until = time.monotonic() + MOMENT_SECONDS
    while not (answer := ask(descriptor)) and time.monotonic() < until:
        time.sleep(MOMENT_SECONDS / 100)
    return answer


def is_held(folder: Path) -> bool:
    """Tell whether some process works in a folder."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)


def excludes(folder: Path) -> bool:
    """Tell whether locks hold in a folder; some network file systems know none."""
    try:
        lock = FolderLock(folder, lambda sentence: None)
    except LockedError:
        return True
    try:
        return is_held(folder)
    finally:
        lock.release()


if sys.platform == "win32":

    def _lock(descriptor: int) -> bool:
        # Far behind the number, which others may read all the while.
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            # Some network file systems know no locks; a run there goes without one.
            return True
        return True
