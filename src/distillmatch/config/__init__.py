"""The configuration: one frozen, typed object that describes a run completely.

The command line, a YAML file and Python build the same object from the same flat names. What is
wrong with a value is said in one sentence that names the key and what it may be.
"""

from distillmatch.config.base import (
    Config,
    allowed_values,
    impossible,
    parse_yaml,
    read_yaml,
    with_underscores,
)
from distillmatch.config.run import LEARNER_KEYS, UNRECORDED_KEYS, RunConfig
from distillmatch.config.stream import LOCATION_KEYS, StreamConfig

__all__ = [
    "LEARNER_KEYS",
    "LOCATION_KEYS",
    "UNRECORDED_KEYS",
    "Config",
    "RunConfig",
    "StreamConfig",
    "allowed_values",
    "impossible",
    "parse_yaml",
    "read_yaml",
    "with_underscores",
]
