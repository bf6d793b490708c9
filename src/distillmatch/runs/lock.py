"""One process per folder: a lock that the system releases however its process dies."""

import contextlib
import os
import platform
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from errno import EINVAL
from pathlib import Path
from typing import Literal

from distillmatch.errors import LockedError, explain_disk_errors
from distillmatch.files import lies_at

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

NAME = "run.lock"
MOMENT_SECONDS = 0.5
State = Literal["taken", "busy", "no locks"]


class FolderLock:
    """Holds `run.lock` in a folder, with the number and machine of its process for people to read.

    Only the lock on the file counts, which ends with its process; a file that was left behind is
    taken over, and `tell` is given a sentence about it. On a network file system without locks the
    file itself excludes others, as long as the process that it names is alive.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.path = folder / NAME
        self._descriptor = self._acquire(tell)

    def _acquire(self, tell: Callable[[str], None]) -> int:
        while True:
            descriptor = self._open()
            left_by, until = _holder_in(descriptor), time.monotonic() + MOMENT_SECONDS
            # Who asks `is_held` takes the lock too, for a moment.
            while (state := _lock(descriptor)) == "busy" and time.monotonic() < until:
                time.sleep(MOMENT_SECONDS / 100)
            if state == "busy" or (state == "no locks" and _lives(left_by) is not False):
                refusal = self._busy(left_by or _holder_in(descriptor), state)
                os.close(descriptor)
                raise LockedError(refusal)
            if lies_at(descriptor, self.path):
                break
            os.close(descriptor)  # its last holder removed the file after we had opened it
        if left_by:
            number = left_by.partition(" ")[0]
            tell(f"process {number} left {self.path.parent} without an end; its lock is taken over")
        if state == "no locks":
            tell(
                f"{self.path.parent} is on a file system without locks: start no second process "
                "there at the same moment"
            )
        with contextlib.suppress(OSError):  # on a full disk the lock holds without the number
            os.truncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, f"{os.getpid()} {platform.node()}\n".encode())
        return descriptor

    def _open(self) -> int:
        with explain_disk_errors("locking the folder", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise OSError(EINVAL, "expected a file, found a pipe or a device")
        return descriptor

    def _busy(self, holder: str, state: State) -> str:
        number, _, machine = holder.partition(" ")
        who = f"another process ({number or 'just started'})"
        if machine not in ("", platform.node()):
            who = f"process {number} of machine {machine}"
        elif number == str(os.getpid()):
            who = "another run of this process"
        sentence = f"{self.path.parent}: {who} is running in this folder; wait for it or choose "
        if state == "busy":
            return f"{sentence}another"
        return (
            f"{sentence}another (no locks here: remove {self.path} if that process is no run of "
            "this folder)"
        )

    def release(self) -> None:
        """Remove the file and release the lock."""
        if sys.platform == "win32":
            os.close(self._descriptor)
            self.path.unlink(missing_ok=True)
        else:
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)


def is_held(folder: Path) -> bool:
    """Return whether a process works in a folder."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        state = _lock(descriptor)
        if state == "no locks":
            return _lives(_holder_in(descriptor)) is not False
        return state == "busy"
    finally:
        os.close(descriptor)


def excludes(folder: Path) -> bool:
    """Return whether locks hold in a folder; some network file systems have none."""
    with explain_disk_errors("locking the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            return _lock(file.fileno()) == "taken"


def _lives(holder: str) -> bool | None:
    """Return whether a process of this machine is alive, or `None` for another machine's."""
    number, _, machine = holder.partition(" ")
    if machine and machine != platform.node():
        return None
    if not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _holder_in(descriptor: int) -> str:
    """Return the number and the machine of the process that wrote the file."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, 300).decode("utf-8", "replace").strip()


if sys.platform == "win32":

    def _lock(descriptor: int) -> State:
        # Far behind the number, which others may read meanwhile.
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return "busy"
        return "taken"

else:

    def _lock(descriptor: int) -> State:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "busy"
        except OSError:  # ENOLCK, EOPNOTSUPP
            return "no locks"
        return "taken"
