"""Options beside a saved stream, whose file says what the stream is."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distillmatch.cli.options import AnyConfig, allowed_imports, config_of, given_values
from distillmatch.config import LOCATION_KEYS
from distillmatch.errors import ConfigError
from distillmatch.streams import read_stream_config, saved_task_count


def config_beside(
    path: Path,
    arguments: argparse.Namespace,
    config: type[AnyConfig],
    free: Sequence[str] = (),
    given: dict[str, Any] | None = None,
) -> AnyConfig:
    """Return the configuration with what describes the saved stream at `path`.

    A given value that contradicts it is refused; where things lie and what is `free` may differ.
    """
    given = given_values(arguments, config) if given is None else given
    saved = read_stream_config(path, allowed_imports(arguments)).model_dump()
    own = {key for key in (*LOCATION_KEYS, *free) if key in given}
    for key in saved:
        if key not in given or key in own:
            continue
        there = saved_task_count(path) if key == "tasks" else saved[key]
        if _listed(given[key]) != _listed(there):
            raise ConfigError(f"{key} is {_listed(there)!r} in {path}, not {_listed(given[key])!r}")
    described = {key: value for key, value in saved.items() if key not in own}
    return config_of({**given, **described}, arguments, config)


def _listed(value: Any) -> Any:
    """Return a value as options and YAML give it, which know no tuples."""
    return list(value) if isinstance(value, tuple) else value
