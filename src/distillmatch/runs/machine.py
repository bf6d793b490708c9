"""Where a result was made: versions, machine, and commit."""

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
    found = {"python": platform.python_version(), **dict.fromkeys(PACKAGES, "unknown")}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine(placement: Placement) -> dict[str, Any]:
    """Return the device, precision and system of a run."""
    return {
        "device": placement.name,
        "precision": str(placement.dtype).removeprefix("torch."),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }


@cache
def commit() -> dict[str, Any]:
    """Return the commit of the code, whether it had changes, and the hash of its tree.

    By the hash, which is git's, a copy without a history can be compared with its commit.
    """
    # Set by who copies a tree without its history, or into another one.
    told = os.environ.get("DISTILLMATCH_COMMIT")
    found, tree = _git("rev-parse", "HEAD"), tree_of(PACKAGE)
    if told or found is None or _git("ls-files", "--error-unmatch", __file__) is None:
        return {"id": told or "unknown", "dirty": None, "tree": tree}
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {"id": found, "dirty": bool(changed), "tree": tree}


def tree_of(folder: Path) -> str:
    """Return git's hash of a folder without `__pycache__`.

    For the package that is what `git rev-parse COMMIT:src/distillmatch` prints.
    """
    entries = {}
    for path in folder.iterdir():
        name = path.name.encode()
        if path.is_file():
            entries[name] = b"100644 " + name, _hash_of(b"blob", path.read_bytes())
        elif path.name != "__pycache__" and (inner := tree_of(path)) != _hash_of(b"tree", b""):
            # Git sorts a folder as if its name ended in a slash, and has no empty ones.
            entries[name + b"/"] = b"40000 " + name, inner
    listed = [head + b"\0" + bytes.fromhex(digest) for _, (head, digest) in sorted(entries.items())]
    return _hash_of(b"tree", b"".join(listed))


def _hash_of(kind: bytes, content: bytes) -> str:
    head = kind + b" " + str(len(content)).encode() + b"\0"
    return sha1(head + content, usedforsecurity=False).hexdigest()


@cache
def tree_in_history(commit_id: str) -> str | None:
    """Return the hash of the package's tree in a commit, where the history is at hand."""
    if not re.fullmatch("[0-9a-f]{7,64}", commit_id):
        return None
    return _git("rev-parse", "--verify", "--quiet", f"{commit_id}:{IN_REPOSITORY}")


def _git(*words: str) -> str | None:
    command = ["git", "-C", str(PACKAGE), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
