"""Find what users add: by the name of an installed entry point, or as `module:name`."""

import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from distillmatch.errors import ConfigError, did_you_mean

CODE_KEYS = ("source", "method", "network")
"""The keys of configurations whose values can name code as `module:name`."""
LIBRARIES = ("torchvision", "timm")
"""The part before the colon in the name of a network from a library."""
METHODS = "distillmatch.methods"
"""The entry point group of methods; their names are known without loading any."""


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the names registered in an entry point group."""
    return tuple(sorted(_plugins(group, tuple(sys.path))))


@cache
def _plugins(group: str, _path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return a group's entry points by name; looking through the path takes 50 ms."""
    return {point.name: point for point in reversed(tuple(entry_points(group=group)))}


def refuse_unknown(name: str, names: Collection[str], kind: str) -> None:
    """Refuse a name that is not installed; `module:name` is looked for when it is loaded."""
    if ":" not in name and name not in names:
        raise ConfigError(
            f"{kind} must be one of {', '.join(names)}, or your own as module:name, not "
            f"'{name}'{did_you_mean(name, names)}"
        )


def refuse_code(values: Mapping[str, Any], where: str, allowed: Collection[str] = ()) -> None:
    """Refuse code that a file names, alone or in a list, unless the user allowed that very name.

    `where` is the file.
    """
    for key in CODE_KEYS:
        given = values.get(key)
        for name in given if isinstance(given, list | tuple) else (given,):
            if not isinstance(name, str) or ":" not in name or name in allowed:
                continue
            if key == "network" and name.partition(":")[0] in LIBRARIES:
                continue
            raise ConfigError(
                f"{where}: its {key} is '{name}', and a file does not decide what is imported; to "
                f"allow it give --allow-import {name} (in Python allow_import='{name}')"
            )


def find_plugin(group: str, name: str, kind: str) -> Callable[..., Any]:
    """Return the callable called `name` in a group, or the one at `module:name`.

    `module` may lie in the current folder, so that a user's single file needs no installation.
    """
    if ":" in name:
        return _from_module(name, kind)
    refuse_unknown(name, plugin_names(group), kind)
    point = _plugins(group, tuple(sys.path))[name]
    with _explained_import(point.module, name, kind):
        loaded = point.load()
    return _callable(loaded, name, kind)


def _from_module(name: str, kind: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith("."):
        raise ConfigError(f"{kind} must be module:name, not '{name}'")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with _explained_import(module_name, name, kind):
        module = importlib.import_module(module_name)
    if not hasattr(module, attribute):
        raise ConfigError(f"{kind} '{name}': module '{module_name}' has no '{attribute}'")
    return _callable(getattr(module, attribute), name, kind)


@contextmanager
def _explained_import(module: str, name: str, kind: str) -> Iterator[None]:
    """Turn what stops the import of a user's module into one sentence, SystemExit too."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(f"{kind} '{name}': there is no module '{error.name}'") from None
        raise ConfigError(
            f"{kind} '{name}': the import of module '{module}' failed with "
            f"{type(error).__name__}: {error}"
        ) from error


def _callable(found: object, name: str, kind: str) -> Callable[..., Any]:
    if not callable(found):
        raise ConfigError(f"{kind} '{name}' must be a function or class, not {found!r}")
    return found
