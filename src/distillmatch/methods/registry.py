"""Finding a method by name: ours and a user's alike are entry points, or given as `module:name`."""

from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.methods.method import Method, NetworkBuilder
from distillmatch.plugins import METHODS, find_plugin, plugin_names


def method_names() -> tuple[str, ...]:
    """Return the names of all methods that are installed."""
    return plugin_names(METHODS)


def find_method(name: str) -> type[Method]:
    """Return the method class of that name."""
    found = find_plugin(METHODS, name, kind="method")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f"method '{name}' must be a subclass of distillmatch.methods.Method")
    return found


def make_method(config: RunConfig, build: NetworkBuilder) -> Method:
    """Return the configured method, ready for its first task."""
    return find_method(config.method)(config, build)
