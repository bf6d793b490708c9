"""The configuration: one frozen, typed object that describes a run completely.

The command line, a YAML file and Python build the same object from the same names. What is wrong
with a value is said in one sentence that names the key and what it may be.
"""

from distillmatch.config.base import (
    Config,
    allowed_values,
    impossible,
    parse_yaml,
    read_yaml,
    with_underscores,
)
from distillmatch.config.recipe import AS_WRITTEN, PAPER, RECIPES, Recipe, Statistics
from distillmatch.config.run import PLACE_KEYS, UNRECORDED_KEYS, MethodOptions, RunConfig
from distillmatch.config.stream import LOCATION_KEYS, StreamConfig

__all__ = [
    "AS_WRITTEN",
    "LOCATION_KEYS",
    "PAPER",
    "PLACE_KEYS",
    "RECIPES",
    "UNRECORDED_KEYS",
    "Config",
    "MethodOptions",
    "Recipe",
    "RunConfig",
    "Statistics",
    "StreamConfig",
    "allowed_values",
    "impossible",
    "parse_yaml",
    "read_yaml",
    "with_underscores",
]
