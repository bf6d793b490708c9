"""From an estimator's parameters to the configuration that methods and trainer are given."""

from typing import Any

import numpy as np

from distillmatch.config import RunConfig, StreamConfig
from distillmatch.errors import ConfigError
from distillmatch.methods import find_method, with_options
from distillmatch.networks import check_network, efficientnet_lite
from distillmatch.plugins import LIBRARIES

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


FEATURES = "features"
"""The method that keeps statistics of a pretrained network's features, and trains no network."""
IDENTITY = "identity"
"""The network where features are given instead of images."""
AUTO = "auto"
FROM_SCRATCH: dict[str, Any] = {
    "method": "worldmatch",
    "network": "wrn-28-2",
    "coreset": 75,
    "options": {"accept": "newness"},
}
"""What is chosen where no pretrained network is installed. What looks new is not taken for a past
class, or labels of new classes would drown in pseudo-labels of old ones.
"""
TRAINING_KEYS = ("epochs", "batch", "unlabeled_batch", "coreset", "learning_rate")
"""What method 'features', which trains nothing, has no use for."""
MISSED = (
    "learning from scratch with method '{method}' on network '{network}'; a pretrained network "
    "recognizes photographs far better: pip install 'distillmatch[pretrained]'"
)


def chosen(parameters: dict[str, Any], before: RunConfig | None) -> dict[str, Any]:
    """Return parameters with a method and a network in place of 'auto', and a size of the coreset.

    Those of what was learned before stay. Else, where weights are at hand, features of a pretrained
    network are learned from, and where none are, a small network is trained from scratch, with a
    small coreset.
    """
    method = parameters["method"]
    if before is not None:
        named = {"method": before.method, "network": before.network}
    elif method == FEATURES or (method == AUTO and _has_weights(parameters)):
        named = {"method": FEATURES, "network": efficientnet_lite.NAME}
    else:
        named = FROM_SCRATCH
    found = {**parameters, **{key: named[key] for key in named if parameters[key] == AUTO}}
    return completed(found, left_to_us=method == AUTO)


def completed(parameters: dict[str, Any], left_to_us: bool) -> dict[str, Any]:
    """Return parameters, of a method that was or was not left to us, with coreset and options."""
    found, scratch = dict(parameters), parameters["method"] == FROM_SCRATCH["method"]
    if found["coreset"] is None:
        found["coreset"] = FROM_SCRATCH.get("coreset", 0) if scratch and left_to_us else 0
    if scratch and left_to_us and isinstance(found["options"], dict | None):
        found["options"] = {**FROM_SCRATCH.get("options", {}), **(found["options"] or {})}
    return found


def missed(parameters: dict[str, Any], config: RunConfig) -> str | None:
    """Return the sentence on what is missed where both method and network were left to us."""
    left_to_us = parameters["method"] == parameters["network"] == AUTO
    if left_to_us and config.method != FEATURES:
        return MISSED.format(method=config.method, network=config.network)
    return None


def _has_weights(parameters: dict[str, Any]) -> bool:
    ready = (efficientnet_lite.NAME, IDENTITY)
    if _pretrained(parameters) is not None or parameters["network"] in ready:
        return True
    return bool(parameters["network"] == AUTO and efficientnet_lite.has_pretrained())


def _pretrained(parameters: dict[str, Any]) -> Any:
    """Return the file of weights, which `options` may name, too."""
    options = parameters["options"]
    named = options.get("pretrained") if isinstance(options, dict) else None
    return parameters.get("pretrained") or named


def lasting(config: RunConfig) -> dict[str, Any]:
    """Return the values that cannot change once something is learned."""
    values = {name: getattr(config, name) for name in LASTING}
    if config.method == FEATURES:
        return values
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
    """Return the configuration of plain, chosen parameters, with `options` where it belongs.

    What is wrong with them is said.
    """
    of_run, of_method = _sorted_options(parameters["options"])
    given = of_run | {name: parameters[name] for name in LEARNER_KEYS}
    config = RunConfig(**given | {"pretrained": _pretrained(parameters)}, options=of_method)
    _check_limits(parameters)
    if config.method == FEATURES:
        _check_features(config)
        return config
    method = find_method(config.method)
    if method.memory == "everything":
        raise ConfigError(
            f"method '{config.method}' needs all images of earlier tasks, and a learner keeps none"
        )
    return with_options(config, method)


def _check_features(config: RunConfig) -> None:
    """Refuse what method 'features' would ignore, and networks without weights."""
    fields = RunConfig.model_fields
    ignored = [key for key in TRAINING_KEYS if getattr(config, key) != fields[key].default]
    ignored += list(config.options)
    if ignored:
        raise ConfigError(
            f"{ignored[0]} is for methods that train a network, and method 'features' trains none; "
            f"leave it out, or name such a method, for example '{FROM_SCRATCH['method']}'"
        )
    if config.network == IDENTITY:
        return
    check_network(config.network)
    own = ":" in config.network and config.network.partition(":")[0] not in LIBRARIES
    if config.pretrained is None and not own and config.network != efficientnet_lite.NAME:
        raise ConfigError(
            f"method 'features' needs network '{config.network}' with weights that it was trained "
            "to; name their file (--pretrained FILE, in Python pretrained=FILE)"
        )


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
    accept = _plain(accept)
    if isinstance(accept, bool) or not isinstance(accept, int | float) or not 0 < accept <= 1:
        raise ConfigError(f"accept must be more than 0 and at most 1, not {accept!r}")
    return float(accept)
