"""From an estimator's parameters to the configuration that methods and trainer are given."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from distillmatch.config import RunConfig, StreamConfig
from distillmatch.config.base import Config, CountOrZero, Share
from distillmatch.errors import ConfigError, LearnerError
from distillmatch.methods import find_method, with_options
from distillmatch.networks import check_network, efficientnet_lite
from distillmatch.plugins import LIBRARIES

Parameters = Mapping[str, Any]

TRAINING_KEYS = ("epochs", "batch", "unlabeled_batch", "coreset", "learning_rate")
"""What method 'features', which trains nothing, has no use for."""
LEARNER_KEYS = ("method", "network", "image_size", "seed", "device", *TRAINING_KEYS)
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
MISSED = (
    "learning from scratch with method '{method}' on network '{network}'; a pretrained network "
    "recognizes photographs far better: pip install 'distillmatch[pretrained]'"
)


class Limits(Config):
    """What a learner has beside the configuration of a run."""

    unlabeled_limit: CountOrZero = 50_000
    accept: Share = 0.95
    examples: CountOrZero = 24
    fine_tune: CountOrZero = 0


def plain(parameters: Parameters) -> dict[str, Any]:
    """Return parameters with NumPy's scalars, which grids of parameters hold, as Python's own."""
    values = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in parameters.items()
    }
    options = values.get("options")
    return values | {"options": plain(options)} if isinstance(options, dict) else values


def chosen(parameters: Parameters, named: Parameters | None = None) -> dict[str, Any]:
    """Return parameters with a method and a network in place of 'auto', and a size of the coreset.

    Where something was learned, `named` has its method and network. Else, where weights are at
    hand, features of a pretrained network are learned from, and where none are, a small network is
    trained from scratch, with a small coreset.
    """
    left_to_us = parameters["method"] == AUTO
    if named is None:
        named = FROM_SCRATCH
        if parameters["method"] == FEATURES or (left_to_us and _has_weights(parameters)):
            named = {"method": FEATURES, "network": efficientnet_lite.NAME}
    found = dict(parameters)
    found |= {key: named[key] for key in ("method", "network") if parameters[key] == AUTO}
    ours = FROM_SCRATCH if left_to_us and found["method"] == FROM_SCRATCH["method"] else {}
    if found["coreset"] is None:
        found["coreset"] = ours.get("coreset", 0)
    if ours and isinstance(found["options"], dict | None):
        found["options"] = ours.get("options", {}) | (found["options"] or {})
    return found


def _has_weights(parameters: Parameters) -> bool:
    network = parameters["network"]
    if _pretrained(parameters) is not None or network in (efficientnet_lite.NAME, IDENTITY):
        return True
    return bool(network == AUTO and efficientnet_lite.has_pretrained())


def _pretrained(parameters: Parameters) -> Any:
    """Return the file of weights, which `options` may name, too."""
    options = parameters["options"]
    named = options.get("pretrained") if isinstance(options, dict) else None
    return parameters.get("pretrained") or named


def missed(parameters: Parameters, config: RunConfig) -> str | None:
    """Return the sentence on what is missed where both method and network were left to us."""
    left_to_us = parameters["method"] == parameters["network"] == AUTO
    if left_to_us and config.method != FEATURES:
        return MISSED.format(method=config.method, network=config.network)
    return None


def run_config(parameters: Parameters, named: Parameters | None = None) -> RunConfig:
    """Return the configuration of plain parameters, with `options` where it belongs.

    What is wrong with them is said. `named` is as in `chosen`.
    """
    parameters = chosen(parameters, named)
    options = parameters["options"] or {}
    if not isinstance(options, dict):
        raise ConfigError(f"options must be names with values, not {options!r}")
    further = set(RunConfig.model_fields) - set(StreamConfig.model_fields) - {*LEARNER_KEYS}
    further = {*further, "recipe"} - {"options"}
    of_run = {name: value for name, value in options.items() if name in further}
    of_run |= {name: parameters[name] for name in LEARNER_KEYS}
    of_method = {name: value for name, value in options.items() if name not in further}
    config = RunConfig(**of_run | {"pretrained": _pretrained(parameters)}, options=of_method)
    limits = Limits(**{key: parameters[key] for key in Limits.model_fields if key in parameters})
    if limits.fine_tune and config.network == IDENTITY:
        raise ConfigError("fine_tune needs images: vectors of features have no network to tune")
    if config.method == FEATURES:
        _check_features(config)
        return config
    if limits.fine_tune:
        raise ConfigError(
            "fine_tune is for method 'features', which stands on a pretrained network; method "
            f"'{config.method}' trains a network of its own"
        )
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


def continued_config(parameters: Parameters, before: RunConfig, image_size: int) -> RunConfig:
    """Return the configuration to go on with, or refuse one that is not that of what was learned.

    `image_size` is the size of the images that were learned.
    """
    named = {"method": before.method, "network": before.network}
    _refuse_change("method", before.method, chosen(parameters, named)["method"])
    config = run_config(parameters, named)
    there, now = _lasting(before), _lasting(config)
    there["image_size"] = image_size
    if config.image_size is None:
        now["image_size"] = image_size
    for name, value in there.items():
        _refuse_change(name, value, now.get(name))
    return config


def _lasting(config: RunConfig) -> dict[str, Any]:
    """Return the values that cannot change once something is learned."""
    values = {name: getattr(config, name) for name in LASTING}
    if config.method == FEATURES:
        return values
    method = find_method(config.method)
    options = method.Options(**config.options)
    return {**values, **{name: getattr(options, name) for name in method.lasting_options}}


def _refuse_change(name: str, there: Any, now: Any) -> None:
    if now != there:
        raise LearnerError(f"{name} is {there!r} in what was learned, and cannot become {now!r}")
