"""Semi-supervised continual learning in which the unlabeled world is the replay buffer.

Public names are imported when they are first used: a stream needs no torch, and an interrupted
command ends without a traceback however early that is.
"""

from importlib import import_module

TYPE_CHECKING = False  # that of `typing`, whose import takes long enough for Ctrl-C to come
if TYPE_CHECKING:
    from typing import Any

    from distillmatch.config import MethodOptions, RunConfig, StreamConfig
    from distillmatch.errors import DistillMatchError
    from distillmatch.learner import ContinualLearner
    from distillmatch.methods import Method
    from distillmatch.runs import run
    from distillmatch.sources import ClassTree, Dataset, Part, load_source
    from distillmatch.streams import Stream, build_stream

__all__ = [
    "ClassTree",
    "ContinualLearner",
    "Dataset",
    "DistillMatchError",
    "Method",
    "MethodOptions",
    "Part",
    "RunConfig",
    "Stream",
    "StreamConfig",
    "__version__",
    "build_stream",
    "load_source",
    "run",
]
_MODULES = {
    "config": ("MethodOptions", "RunConfig", "StreamConfig"),
    "errors": ("DistillMatchError",),
    "learner": ("ContinualLearner",),
    "methods": ("Method",),
    "runs": ("run",),
    "sources": ("ClassTree", "Dataset", "Part", "load_source"),
    "streams": ("Stream", "build_stream"),
}


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        try:
            return version("distillmatch")
        except PackageNotFoundError:  # a source tree that was not installed
            return "unknown"
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"distillmatch.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
