"""The configuration: one frozen, typed object that describes a run completely.

The command line, a YAML file and Python build the same object from the same names. A wrong value is
refused in one sentence that names the key and what it may be.
"""

from distillmatch.config.base import Config, allowed_values, with_underscores
from distillmatch.config.recipe import AS_WRITTEN, PAPER, RECIPES, Recipe, Statistics
from distillmatch.config.run import PLACE_KEYS, UNRECORDED_KEYS, MethodOptions, RunConfig
from distillmatch.config.stream import IMAGE_KEYS, LOCATION_KEYS, StreamConfig
from distillmatch.config.yaml_files import parse_yaml, read_yaml

__all__ = [
    "AS_WRITTEN", "IMAGE_KEYS", "LOCATION_KEYS", "PAPER", "PLACE_KEYS", "RECIPES",
    "UNRECORDED_KEYS", "Config", "MethodOptions", "Recipe", "RunConfig", "Statistics",
    "StreamConfig", "allowed_values", "parse_yaml", "read_yaml", "with_underscores",
]  # fmt: skip
