"""Find a source by name: ours and a user's alike are entry points, or given as `module:name`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distillmatch.config import StreamConfig
from distillmatch.errors import DistillMatchError, SourceError, kind_of
from distillmatch.plugins import find_plugin
from distillmatch.sources.dataset import Dataset

GROUP = "distillmatch.sources"


@dataclass(frozen=True)
class CheckedSource:
    """A source that can also check, without reading its images, that they are available.

    `check` raises the reason if not. It may download them, so that many runs download them once.
    """

    load: Callable[[StreamConfig], Dataset]
    check: Callable[[StreamConfig], object]

    def __call__(self, config: StreamConfig) -> Dataset:
        """Load the data set."""
        return self.load(config)


def load_source(config: StreamConfig) -> Dataset:
    """Load the data set that the configuration names.

    A source is any callable that takes the configuration and returns a `Dataset`.
    """
    dataset = _call(find_plugin(GROUP, config.source, kind="source"), config)
    if not isinstance(dataset, Dataset):
        raise SourceError(
            f"source '{config.source}' must return a distillmatch.sources.Dataset, "
            f"not {kind_of(dataset)}"
        )
    return dataset


def check_images_available(config: StreamConfig) -> None:
    """Refuse a configuration whose images are not available, if its source can check that."""
    check = getattr(find_plugin(GROUP, config.source, kind="source"), "check", None)
    if callable(check):
        _call(check, config)


def _call(function: Callable[..., Any], config: StreamConfig) -> Any:
    """Call a function of a source; if a user's source fails or exits, say which one."""
    try:
        return function(config)
    except DistillMatchError:
        raise
    except (Exception, SystemExit) as error:
        module = getattr(getattr(function, "load", function), "__module__", "")
        if module.startswith("distillmatch."):
            raise
        raise SourceError(
            f"your source '{config.source}' failed with {type(error).__name__}: {error}"
        ) from error
