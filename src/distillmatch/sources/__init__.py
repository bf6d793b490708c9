"""Sources: where images come from, each a function from a configuration to a `Dataset`."""

from distillmatch.sources.dataset import UNKNOWN, ClassTree, Dataset, Part, verify
from distillmatch.sources.registry import load_source, source_names

__all__ = ["UNKNOWN", "ClassTree", "Dataset", "Part", "load_source", "source_names", "verify"]
