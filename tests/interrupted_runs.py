"""Runs that are killed and continued: progress that dies, and sessions that go on."""

import os
from pathlib import Path
from typing import Any

from small_runs import TINY as SMALL
from small_runs import six_classes

from distillmatch.config import RunConfig
from distillmatch.runs import run

Result = dict[str, Any]
ALWAYS = 1e-9
"""Seconds between checkpoints: one after every epoch."""
TINY: dict[str, Any] = {**SMALL, "epochs": 4, "task_sizes": None, "tasks": 3, "coreset": 6}
CONFIDENT = {"consistency_threshold": 0.2}
"""Options of DM by which some strong views count in so short a run."""


def interrupted(**options: Any) -> RunConfig:
    """Return a small run, of DM unless another method is named."""
    given = {"method": "dm", **TINY, **options}
    if given["method"] in ("dm", "worldmatch"):
        given["options"] = {**CONFIDENT, **given.get("options", {})}
    return RunConfig(**given)


class Killed(BaseException):
    """Stands for the end of the process: nothing in the package catches it."""


class DiesAfter:
    """Progress that lets so many epochs finish; the last of them is not yet in a checkpoint."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.total = self.done = 0.0

    def start(self, total: float, done: float = 0.0) -> None:
        self.total, self.done = total, done

    def advance(self, done: float, doing: str) -> None:
        self.done += done
        self.epochs -= 1
        if self.epochs == 0:
            raise Killed

    def stop(self) -> None:
        pass


said: list[str] = []
"""What the last sessions told their user."""


def session(config: RunConfig, out: Path, epochs: int = 10**9, **options: Any) -> Result | None:
    """Run until killed, so many epochs later, or to the end."""
    given = {"checkpoint_seconds": ALWAYS, "dataset": six_classes(), "tell": said.append, **options}
    try:
        return run(config, out, progress=DiesAfter(epochs), **given)
    except Killed:
        return None


def checkpoint_files(out: Path) -> list[Path]:
    return sorted((out / "checkpoints").glob("*.safetensors"))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)
