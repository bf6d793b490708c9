"""From an estimator's parameters to the configuration that methods and trainer are given."""

from typing import Any

import numpy as np

from distillmatch.config import LEARNER_KEYS, RunConfig, StreamConfig
from distillmatch.config.run import ORACLES
from distillmatch.errors import ConfigError
from distillmatch.methods import find_method

LASTING = (
    "method",
    "network",
    "initial_weights",
    "image_size",
    "coreset",
    "seed",
    "pseudo_labels",
    "gate",
    "gate_confidence",
    "similarity",
    "base_distillation",
)
"""What cannot change once something is learned: networks, thresholds and images kept belong to it.
"""


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
    own = {name: parameters[name] for name in LEARNER_KEYS}
    fields, of_method = _sorted_options(parameters["options"], own["method"])
    config = RunConfig(**own, **fields, options=of_method)
    method = find_method(config.method)
    if method.memory == "everything":
        raise ConfigError(
            f"method '{config.method}' needs all images of earlier tasks, and a learner keeps none"
        )
    if config.gate in ORACLES:
        raise ConfigError(
            f"gate '{config.gate}' needs the classes of unlabelled images, which nobody knows"
        )
    _check_limits(parameters)
    return config


def _sorted_options(options: Any, method: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide options into those of a run's configuration and those of a user's own method."""
    if options is None:
        return {}, {}
    if not isinstance(options, dict):
        raise ConfigError(f"options must be names with values, not {options!r}")
    known = (
        set(RunConfig.model_fields) - set(StreamConfig.model_fields) - {*LEARNER_KEYS, "options"}
    )
    fields = {name: value for name, value in options.items() if name in known}
    others = {name: value for name, value in options.items() if name not in known}
    if others and ":" not in method:
        raise ConfigError(
            f"options: unknown name '{next(iter(others))}'; the names are "
            f"{', '.join(sorted(known))}"
        )
    return fields, others


def _check_limits(parameters: dict[str, Any]) -> None:
    for name in ("unlabeled_limit", "examples"):
        value = parameters[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{name} must be a whole number of at least 0, not {value!r}")
    rate = parameters["known_rate"]
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
        raise ConfigError(f"known_rate must be more than 0 and at most 1, not {rate!r}")
