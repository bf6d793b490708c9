"""What runs in worker processes need: a small configuration, a source that fails."""

from typing import Any

from small_runs import SOURCE

from distillmatch.config import StreamConfig
from distillmatch.errors import SourceError
from distillmatch.runs.side_by_side import Job
from distillmatch.sources import Dataset

COMMON: dict[str, Any] = {
    "source": SOURCE,
    "tasks": 2,
    "network": "wrn-10-1",
    "epochs": 1,
    "batch": 8,
    "unlabeled_batch": 8,
    "device": "cpu",
}


def broken(config: StreamConfig) -> Dataset:
    raise SourceError("there are no images here")


def nothing(sentence: str) -> None:
    """Take what is said, and do nothing with it."""


def checkpoints(job: Job) -> int:
    """Return the number of the newest checkpoint of a run."""
    found = (job.out / "checkpoints").glob("*.safetensors")
    return max((int(path.stem) for path in found), default=0)
