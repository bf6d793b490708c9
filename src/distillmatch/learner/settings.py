"""From an estimator's parameters to the configuration that methods and trainer are given."""

from typing import Any

import numpy as np

from distillmatch.config import RunConfig, StreamConfig
from distillmatch.errors import ConfigError
from distillmatch.methods import find_method, with_options

LEARNER_KEYS = (
    "method",
    "network",
    "image_size",
    "epochs",
    "batch",
    "unlabeled_batch",
    "coreset",
    "learning_rate",
    "seed",
    "device",
)
"""What a learner of one's own images has under the same names as a run."""
LASTING = ("method", "recipe", "network", "image_size", "coreset", "seed")
"""What cannot change once something is learned: networks and stored images belong to it."""


def lasting(config: RunConfig) -> dict[str, Any]:
    """Return the values that cannot change once something is learned."""
    values = {name: getattr(config, name) for name in LASTING}
    method = find_method(config.method)
    options = method.Options(**config.options)
    return {**values, **{name: getattr(options, name) for name in method.lasting_options}}


def plain(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with NumPy's scalars, which grids of parameters hold, as Python's own."""
    values = {name: _plain(value) for name, value in parameters.items()}
    options = values["options"]
    if isinstance(options, dict):
        values["options"] = {name: _plain(value) for name, value in options.items()}
    return values


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def run_config(parameters: dict[str, Any]) -> RunConfig:
    """Return the configuration of plain parameters, with `options` where it belongs.

    What is wrong with them is said.
    """
    of_run, of_method = _sorted_options(parameters["options"])
    own = {name: parameters[name] for name in LEARNER_KEYS}
    config = RunConfig(**own, **of_run, options=of_method)
    _check_limits(parameters)
    method = find_method(config.method)
    if method.memory == "everything":
        raise ConfigError(
            f"method '{config.method}' needs all images of earlier tasks, and a learner keeps none"
        )
    return with_options(config, method)


def _sorted_options(options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide options into those of a run's configuration and those of the method."""
    if options is None:
        return {}, {}
    if not isinstance(options, dict):
        raise ConfigError(f"options must be names with values, not {options!r}")
    further = set(RunConfig.model_fields) - set(StreamConfig.model_fields) - {*LEARNER_KEYS}
    further = {*further, "recipe"} - {"options"}
    of_run = {name: value for name, value in options.items() if name in further}
    return of_run, {name: value for name, value in options.items() if name not in further}


def _check_limits(parameters: dict[str, Any]) -> None:
    for name in ("unlabeled_limit", "examples"):
        value = parameters[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{name} must be a whole number of at least 0, not {value!r}")
    check_accept(parameters["accept"])


def check_accept(accept: Any) -> float:
    """Return the share of known images that are to be accepted, or refuse what is none."""
    if isinstance(accept, bool) or not isinstance(accept, int | float) or not 0 < accept <= 1:
        raise ConfigError(f"accept must be more than 0 and at most 1, not {accept!r}")
    return float(accept)
