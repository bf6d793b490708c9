"""Sources for runs in worker processes: 60 small images, and one that has none."""

from conftest import make_dataset

from distillmatch.config import StreamConfig
from distillmatch.errors import SourceError
from distillmatch.sources import Dataset


def six_classes(config: StreamConfig) -> Dataset:
    return make_dataset(classes=6, per_class=10, parents=3, noise=True)


def broken(config: StreamConfig) -> Dataset:
    raise SourceError("there are no images here")
