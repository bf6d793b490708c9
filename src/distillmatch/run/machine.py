"""On what a result was made: versions, machine, commit."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from distillmatch.engine import Placement

PACKAGES = ("distillmatch", "torch", "numpy", "pillow")


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
    """Return the commit of the code that ran, and whether the tree had changes beside it."""
    # Who copies a tree without its history, or with another one, can say what it is.
    told = os.environ.get("DISTILLMATCH_COMMIT")
    here = Path(__file__).resolve().parent
    found = _git(here, "rev-parse", "HEAD")
    if told or found is None or _git(here, "ls-files", "--error-unmatch", __file__) is None:
        return {"id": told or "unknown", "dirty": None}
    return {"id": found, "dirty": bool(_git(here, "status", "--porcelain", "--untracked-files=no"))}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
