"""What runs in worker processes need: sources, a small configuration, and their checkpoints."""

from typing import Any

from conftest import make_dataset

from distillmatch.config import StreamConfig
from distillmatch.errors import SourceError
from distillmatch.runs.side_by_side import Job
from distillmatch.sources import Dataset

COMMON: dict[str, Any] = {
    "source": "suite_sources:six_classes",
    "tasks": 2,
    "network": "wrn-10-1",
    "epochs": 1,
    "batch": 8,
    "unlabeled_batch": 8,
    "device": "cpu",
}


def six_classes(config: StreamConfig) -> Dataset:
    return make_dataset(classes=6, per_class=10, parents=3, noise=True)


def broken(config: StreamConfig) -> Dataset:
    raise SourceError("there are no images here")


def nothing(sentence: str) -> None:
    """Take what is said, and do nothing with it."""


def checkpoints(job: Job) -> int:
    """Return the number of the newest checkpoint of a run."""
    found = (job.out / "checkpoints").glob("*.safetensors")
    return max((int(path.stem) for path in found), default=0)
