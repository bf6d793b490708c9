"""One process a folder: a lock that the system takes back when its holder dies, however it dies."""

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
from typing import Literal, TypeVar

from distillmatch.errors import LockedError, explain_disk_errors
from distillmatch.files import lies_at

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

NAME = "run.lock"
MOMENT_SECONDS = 0.5
Answer = TypeVar("Answer")
State = Literal["taken", "busy", "no locks"]


class FolderLock:
    """Holds `run.lock` in a folder, with the process's number and machine in it for people to read.

    The file being there means nothing: what counts is the lock on it, which does not outlive the
    process. A file that was left behind is taken over, and `tell` is given a sentence about it.
    Some network file systems know no locks: there the file itself keeps others out, as long as the
    process that it names is alive.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.path = folder / NAME
        self._descriptor = self._acquire(tell)

    def _acquire(self, tell: Callable[[str], None]) -> int:
        while True:
            with explain_disk_errors("locking the folder", self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    os.close(descriptor)
                    raise OSError(EINVAL, "expected a file, found a pipe or a device")
            holder = _holder_in(descriptor)
            # `is_held` takes the lock for a moment, and who has just taken it is about to write.
            state = _soon(_lock, descriptor)
            if state == "busy":
                holder = holder or _soon(_holder_in, descriptor)
                os.close(descriptor)
                raise LockedError(self._busy(holder))
            if state == "no locks" and holder and _lives(holder) is not False:
                os.close(descriptor)
                raise LockedError(self._busy(holder, unsure=_lives(holder) is None))
            if lies_at(descriptor, self.path):
                break
            os.close(descriptor)  # its last holder removed the file after we had opened it
        if holder:
            number = holder.partition(" ")[0]
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

    def _busy(self, holder: str, *, unsure: bool = False) -> str:
        number, _, machine = holder.partition(" ")
        who = f"another process ({number or 'just started'})"
        if number == str(os.getpid()):
            who = "another run of this process"
        if unsure:
            return (
                f"{self.path.parent}: process {number} of machine {machine} has begun a run in "
                "this folder, which is on a file system without locks, so that nobody here can "
                f"tell whether it lives; if it does not, remove {self.path}"
            )
        return f"{self.path.parent}: {who} is running in this folder; wait for it or choose another"

    def release(self) -> None:
        """Remove the file and give the lock back."""
        if sys.platform == "win32":
            os.close(self._descriptor)
            self.path.unlink(missing_ok=True)
        else:
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)


def _lives(holder: str) -> bool | None:
    """Return whether a process of this machine is alive; of another machine nobody knows."""
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


def _soon(ask: Callable[[int], Answer], descriptor: int) -> Answer:
    """Return what is answered within a moment: the first that is not empty or busy, or the last."""
    until = time.monotonic() + MOMENT_SECONDS
    while (answer := ask(descriptor)) in ("", "busy") and time.monotonic() < until:
        time.sleep(MOMENT_SECONDS / 100)
    return answer


def is_held(folder: Path) -> bool:
    """Return whether some process works in a folder."""
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
    """Return whether locks hold in a folder; some network file systems know none."""
    with explain_disk_errors("locking the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            return _lock(file.fileno()) == "taken"


if sys.platform == "win32":

    def _lock(descriptor: int) -> State:
        # Far behind the number, which others may read all the while.
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
        except OSError:
            return "no locks"
        return "taken"
