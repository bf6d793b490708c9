"""Finding a method by name, and checking the options that it is given."""

from importlib.metadata import entry_points
from inspect import isabstract
from typing import Any

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError, did_you_mean
from distillmatch.methods.method import Method, NetworkBuilder
from distillmatch.plugins import METHODS, find_plugin, plugin_names


def method_names() -> tuple[str, ...]:
    """Return the names of all methods that are installed."""
    return plugin_names(METHODS)


_given: dict[str, type[Method]] = {}


def given_name(method: type[Method]) -> str:
    """Return the name by which a class that was passed, and not named, is found in this process."""
    where = f"{method.__module__}:{method.__qualname__}"
    for point in entry_points(group=METHODS):
        if point.value == where:
            return point.name
    _given[where] = method
    return where


def find_method(name: str) -> type[Method]:
    """Return the method class of that name."""
    if name in _given:
        return _given[name]
    found = find_plugin(METHODS, name, kind="method")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f"method '{name}' must be a subclass of distillmatch.methods.Method")
    if isabstract(found):
        raise ConfigError(f"method '{name}' must define loss(self, batch, task)")
    return found


def with_options(config: RunConfig, method: type[Method] | None = None) -> RunConfig:
    """Return the configuration as the method sees it, with the method's options checked.

    Options at their defaults are left out, and so is an unlabeled stream that the method does not
    see, so that equal runs have equal configurations.
    """
    method = method or find_method(config.method)
    own = method.Options.model_fields
    for name in config.options:
        if name not in own:
            problem = f"method '{config.method}' has no option '{name}'"
            if name in RunConfig.model_fields:
                raise ConfigError(f"{problem}: it is an option of the run")
            hint = did_you_mean(name, [*own, *RunConfig.model_fields])
            raise ConfigError(f"{problem}{hint}; its options are {', '.join(own) or 'none'}")
    try:
        checked = method.Options(**config.options).model_dump()
    except ConfigError as error:
        raise ConfigError(f"method '{config.method}': {error}") from None
    defaults = method.Options().model_dump()
    changes: dict[str, Any] = {
        "options": {key: value for key, value in checked.items() if value != defaults[key]}
    }
    if not method.unlabeled:  # what it does not see makes no other run
        changes |= {"unlabeled": "none", "random_classes": None, "unlabeled_per_task": None}
    if method.memory == "everything":
        changes |= {"coreset": 0, "stored_share": None}
    same = all(getattr(config, key) == value for key, value in changes.items())
    return config if same else config.replace(order=config.order, **changes)


def make_method(config: RunConfig, build: NetworkBuilder) -> Method:
    """Return the configured method, ready for its first task."""
    return find_method(config.method)(config, build)
