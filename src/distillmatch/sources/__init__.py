"""Sources: where images come from, each a function from a configuration to a `Dataset`."""

from distillmatch.sources.dataset import UNKNOWN, ClassTree, Dataset, Part, verify
from distillmatch.sources.registry import CheckedSource, check_images_available, load_source

__all__ = [
    "UNKNOWN", "CheckedSource", "ClassTree", "Dataset", "Part", "check_images_available",
    "load_source", "verify",
]  # fmt: skip
