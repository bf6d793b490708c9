"""Spaces of hyperparameters to choose from, the paper's or a user's own, and two ways to search.

A search calls `try_points` with a list of points and gets a list of scores, higher being better and
`None` standing for a point that failed. What it tries depends on these alone: a search that was
interrupted is simply begun again, since points with results cost nothing.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from distillmatch.config import PLACE_KEYS, RunConfig, StreamConfig, parse_yaml, read_yaml
from distillmatch.errors import ConfigError
from distillmatch.methods import find_method, with_options
from distillmatch.methods.detector import true_positive_rate
from distillmatch.methods.method import HIGH_RATE
from distillmatch.plugins import refuse_code

Values = dict[str, Any]
Space = dict[str, tuple[Any, ...]]
TryPoints = Callable[[list[Values]], list[float | None]]

PAPER: Space = {
    "learning_rate": (0.005, 0.01, 0.05, 0.1, 0.5),
    "consistency_weight": (0.1, 0.5, 1.0, 5.0),
    "true_positive_rate": (0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.95),
    "consistency_threshold": (0.7, 0.85, 0.9, 0.95),
}
"""The ranges of the paper's hyperparameter table, in its order."""


def grid(space: Space, start: Values, try_points: TryPoints) -> None:
    """Try every point, all at once."""
    try_points([dict(zip(space, values, strict=True)) for values in product(*space.values())])


def coordinate(space: Space, start: Values, try_points: TryPoints) -> None:
    """Go through one hyperparameter after the other, the others being the best so far."""
    best = start
    for name, values in space.items():
        points = [{**best, name: value} for value in values]
        scores = try_points(points)
        known = {place: score for place, score in enumerate(scores) if score is not None}
        if known:
            best = points[max(known, key=lambda place: known[place])]


SEARCHES = {"coordinate": coordinate, "grid": grid}


def paper_space(config: RunConfig) -> Space:
    """Return what the paper searched for a method: DM's four, the learning rate for all others.

    What an ablation takes away is left out.
    """
    chosen = find_method(config.method).Options(**config.options).model_dump()
    keys = {"learning_rate", *chosen}
    if chosen.get("consistency_weight") == 0:
        keys -= {"consistency_weight", "consistency_threshold"}
    if not chosen.get("pseudo_labels", True):
        keys.remove("true_positive_rate")
    return {key: values for key, values in PAPER.items() if key in keys}


def parse_space(
    words: Sequence[str], config: RunConfig, allow_import: Collection[str] = ()
) -> Space:
    """Return the space that words describe: `name=value,value` each, or one YAML file."""
    if len(words) == 1 and "=" not in words[0]:
        path = Path(words[0])
        read = read_yaml(path)
        if not isinstance(read, dict):
            raise ConfigError(f"{path}: expected hyperparameters with lists of values")
        refuse_code(read, str(path), allow_import)
        return check_space(read, config, f"{path}: ")
    lists = {}
    for word in words:
        name, _, values = word.partition("=")
        if not name or not values:
            raise ConfigError(f"--space takes name=value,value or one YAML file, not '{word}'")
        if not all(value.strip() for value in values.split(",")):
            raise ConfigError(f"--space: {name}: expected values, found an empty one in '{values}'")
        try:
            lists[name] = [parse_yaml(value) for value in values.split(",")]
        except yaml.YAMLError:
            raise ConfigError(f"--space: '{values}' is no list of values") from None
    return check_space(lists, config, "--space: ")


def check_space(lists: Mapping[Any, Any], config: RunConfig, where: str = "") -> Space:
    """Return the lists as a space, or say which of them a run cannot be given."""
    space: Space = {}
    for written, values in lists.items():
        name = str(written).replace("-", "_")
        if name in StreamConfig.model_fields or name in PLACE_KEYS:
            raise ConfigError(f"{where}{name} is part of the setting, not a hyperparameter")
        if not isinstance(values, list | tuple) or not values:
            raise ConfigError(f"{where}{name} must be given a list of values, not {values!r}")
        if name in space:
            raise ConfigError(f"{where}{name} is given twice, with dashes and with underscores")
        try:
            checked = (_value(with_values(config, {name: value}), name) for value in values)
            space[name] = tuple(dict.fromkeys(checked))  # 5 and 5.0 are one value
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from None
    if not space:
        raise ConfigError(f"{where}there are no hyperparameters to choose")
    return space


def with_values(config: RunConfig, values: Values) -> RunConfig:
    """Return the configuration with these hyperparameters, the method's options among them."""
    of_run = {key: value for key, value in values.items() if key in RunConfig.model_fields}
    of_method = {key: value for key, value in values.items() if key not in of_run}
    return with_options(config.replace(**of_run, options={**config.options, **of_method}))


def start_values(config: RunConfig, space: Space) -> Values:
    """Return where a search begins: the configuration's own values where they are in the lists.

    What it leaves to the method is what the paper chose; for others the middle of the list.
    """
    method = find_method(config.method)
    papers = {
        "learning_rate": HIGH_RATE if config.coreset else method.learning_rate,
        "consistency_threshold": method.recipe_of(config).consistency_threshold,
        "true_positive_rate": true_positive_rate(config, None),
    }
    start: Values = {}
    for name, values in space.items():
        own = _value(config, name)
        own = papers.get(name) if own is None else own
        start[name] = own if own in values else values[len(values) // 2]
    return start


def _value(config: RunConfig, name: str) -> Any:
    """Return a configuration's value of a field or of an option of its method."""
    if name in RunConfig.model_fields:
        return getattr(config, name)
    return getattr(find_method(config.method).Options(**config.options), name)
