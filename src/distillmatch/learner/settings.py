"""From a learner's parameters to the configuration that methods and trainer are given."""

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
OTHER_KEYS = {*RunConfig.model_fields} - {*StreamConfig.model_fields, *LEARNER_KEYS, "options"}
OTHER_KEYS |= {"recipe"}
"""What `options` may have of a run; all else there belongs to the method."""
LASTING = ("method", "recipe", "network", "coreset", "seed")
"""What cannot change once something is learned: networks and stored images belong to it."""
FEATURES = "features"
"""The method that keeps statistics of a pretrained network's features, and trains no network."""
IDENTITY = "identity"
"""The network where features are given instead of images."""
AUTO = "auto"
PRETRAINED = {"method": FEATURES, "network": efficientnet_lite.NAME}
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


def resolve(parameters: Parameters, chosen: Parameters | None = None) -> RunConfig:
    """Return the configuration of plain parameters, or refuse them.

    'auto' stands for the `chosen` method and network of what was learned. Without any, features of
    a pretrained network are learned from where weights are at hand; else a small network is trained
    from scratch, with a small coreset.
    """
    method, network = parameters["method"], parameters["network"]
    coreset, options = parameters["coreset"], parameters["options"] or {}
    if not isinstance(options, dict):
        raise ConfigError(f"options must be names with values, not {options!r}")
    pretrained = parameters.get("pretrained") or options.get("pretrained")
    if chosen is None:
        has_weights = pretrained is not None or network in (efficientnet_lite.NAME, IDENTITY)
        has_weights |= network == AUTO and efficientnet_lite.has_pretrained()
        features = method == FEATURES or (method == AUTO and has_weights)
        chosen = PRETRAINED if features else FROM_SCRATCH
    if method == AUTO and chosen["method"] == FROM_SCRATCH["method"]:
        coreset = FROM_SCRATCH.get("coreset", 0) if coreset is None else coreset
        options = FROM_SCRATCH.get("options", {}) | options
    of_run = {key: options[key] for key in options if key in OTHER_KEYS}
    of_run |= {key: parameters[key] for key in LEARNER_KEYS}
    of_run |= {"method": chosen["method"]} if method == AUTO else {}
    of_run |= {"network": chosen["network"]} if network == AUTO else {}
    of_run |= {"coreset": coreset or 0, "pretrained": pretrained}
    of_method = {key: options[key] for key in options if key not in OTHER_KEYS}
    config = RunConfig(**of_run, options=of_method)
    limits = Limits(**{key: parameters[key] for key in Limits.model_fields if key in parameters})
    return _checked(config, limits)


def _checked(config: RunConfig, limits: Limits) -> RunConfig:
    """Refuse what a learner cannot do, or would ignore."""
    if limits.fine_tune and config.network == IDENTITY:
        raise ConfigError("fine_tune needs images: vectors of features have no network to tune")
    if config.method != FEATURES:
        if limits.fine_tune:
            raise ConfigError(
                "fine_tune is for method 'features', which stands on a pretrained network; method "
                f"'{config.method}' trains a network of its own"
            )
        method = find_method(config.method)
        if method.memory == "everything":
            raise ConfigError(
                f"method '{config.method}' needs all images of earlier tasks, and a learner keeps "
                "none"
            )
        return with_options(config, method)
    fields = RunConfig.model_fields
    ignored = [key for key in TRAINING_KEYS if getattr(config, key) != fields[key].default]
    ignored += list(config.options)
    if ignored:
        raise ConfigError(
            f"{ignored[0]} is for methods that train a network, and method 'features' trains none; "
            f"leave it out, or name such a method, for example '{FROM_SCRATCH['method']}'"
        )
    if config.network != IDENTITY:
        check_network(config.network)
        own = ":" in config.network and config.network.partition(":")[0] not in LIBRARIES
        if config.pretrained is None and not own and config.network != efficientnet_lite.NAME:
            raise ConfigError(
                f"method 'features' needs network '{config.network}' with weights that it was "
                "trained to; name their file (--pretrained FILE, in Python pretrained=FILE)"
            )
    return config


def resolve_again(parameters: Parameters, before: RunConfig, image_size: int) -> RunConfig:
    """Return the configuration to go on with, or refuse to change what was learned with."""
    _refuse_change("method", before.method, parameters["method"], AUTO)
    config = resolve(parameters, {"method": before.method, "network": before.network})
    for name in LASTING:
        _refuse_change(name, getattr(before, name), getattr(config, name))
    _refuse_change("image_size", image_size, config.image_size, None)
    if config.method != FEATURES:
        method = find_method(config.method)
        there, now = method.Options(**before.options), method.Options(**config.options)
        for name in method.lasting_options:
            _refuse_change(name, getattr(there, name), getattr(now, name))
    return config


def _refuse_change(name: str, there: Any, now: Any, *unset: Any) -> None:
    if now != there and now not in unset:
        raise LearnerError(f"{name} is {there!r} in what was learned, and cannot become {now!r}")
