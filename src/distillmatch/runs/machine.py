"""On what a result was made: versions, machine, commit."""

import os
import platform
import re
import subprocess
from functools import cache
from hashlib import sha1
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from distillmatch.engine import Placement

PACKAGES = ("distillmatch", "torch", "numpy", "pillow")
PACKAGE = Path(__file__).resolve().parent.parent
IN_REPOSITORY = "src/distillmatch"


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a result depends on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def machine(placement: Placement) -> dict[str, Any]:
    """Return what the run computed on."""
    return {
        "device": placement.name,
        "precision": str(placement.dtype).removeprefix("torch."),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }


def commit() -> dict[str, Any]:
    """Return the commit of the code that ran, whether the tree had changes, and the code's name.

    The name is what git calls these files, so that a copy without a history can be held against
    the commit it is said to be of.
    """
    # Who copies a tree without its history, or with another one, can say what it is.
    told = os.environ.get("DISTILLMATCH_COMMIT")
    found, tree = _git("rev-parse", "HEAD"), tree_of(PACKAGE)
    if told or found is None or _git("ls-files", "--error-unmatch", __file__) is None:
        return {"id": told or "unknown", "dirty": None, "tree": tree}
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {"id": found, "dirty": bool(changed), "tree": tree}


def tree_of(folder: Path) -> str:
    """Return the name that git would give the files of a folder, what Python made aside.

    For the package that is what `git rev-parse COMMIT:src/distillmatch` prints.
    """
    entries = {}
    for path in folder.iterdir():
        name = path.name.encode()
        if path.is_file():
            entries[name] = b"100644 " + name, _named(b"blob", path.read_bytes())
        elif path.name != "__pycache__" and (inner := tree_of(path)) != _named(b"tree", b""):
            # Git sorts a folder as if its name ended in a slash, and knows no empty ones.
            entries[name + b"/"] = b"40000 " + name, inner
    listed = [head + b"\0" + bytes.fromhex(digest) for _, (head, digest) in sorted(entries.items())]
    return _named(b"tree", b"".join(listed))


@cache
def tree_in_history(commit_id: str) -> str | None:
    """Return the name of the package's files in a commit, where the history is at hand."""
    if not re.fullmatch("[0-9a-f]{7,64}", commit_id):
        return None
    return _git("rev-parse", "--verify", "--quiet", f"{commit_id}:{IN_REPOSITORY}")


def _named(kind: bytes, content: bytes) -> str:
    head = kind + b" " + str(len(content)).encode() + b"\0"
    return sha1(head + content, usedforsecurity=False).hexdigest()


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(PACKAGE), *words],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
