"""Files that cannot be read, and what a folder holds."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest


def forbid(patch: pytest.MonkeyPatch, *forbidden: Path, reason: int = errno.EACCES) -> None:
    """Let nobody open these files, not even the administrator."""
    inner = Path.open

    def guarded(self: Path, *given: Any, **named: Any) -> Any:
        if self in forbidden:
            raise OSError(reason, os.strerror(reason), str(self))
        return inner(self, *given, **named)

    patch.setattr(Path, "open", guarded)


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder by their names, but not who works in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.lock"
    }
