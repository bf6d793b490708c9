"""Finding a source by name: ours and a user's alike are entry points, or given as `module:name`."""

from distillmatch.config import StreamConfig
from distillmatch.errors import DistillMatchError, SourceError
from distillmatch.plugins import find_plugin, plugin_names
from distillmatch.sources.dataset import Dataset

GROUP = "distillmatch.sources"


def source_names() -> tuple[str, ...]:
    """Return the names of all sources that are installed."""
    return plugin_names(GROUP)


def load_source(config: StreamConfig) -> Dataset:
    """Load the data set that the configuration names.

    A source is any callable that takes the configuration and returns a `Dataset`.
    """
    load = find_plugin(GROUP, config.source, kind="source")
    try:
        dataset = load(config)
    except DistillMatchError:
        raise
    except Exception as error:
        if ":" not in config.source:
            raise
        raise SourceError(
            f"your source '{config.source}' failed with {type(error).__name__}: {error}"
        ) from error
    if not isinstance(dataset, Dataset):
        raise SourceError(
            f"source '{config.source}' must return a distillmatch.sources.Dataset, "
            f"not {type(dataset).__name__}"
        )
    return dataset
