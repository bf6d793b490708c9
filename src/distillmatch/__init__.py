"""Semi-supervised continual learning in which the unlabeled world is the replay buffer.

What needs torch is imported when it is first asked for: a stream can be built and looked at
without it.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from distillmatch.config import MethodOptions, RunConfig, StreamConfig
from distillmatch.errors import DistillMatchError
from distillmatch.sources import ClassTree, Dataset, Part, load_source
from distillmatch.streams import Stream, build_stream

if TYPE_CHECKING:
    from distillmatch.learner import ContinualLearner
    from distillmatch.methods import Method
    from distillmatch.runs import run

try:
    __version__ = version("distillmatch")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "unknown"

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
_WITH_TORCH = {"ContinualLearner": "learner", "Method": "methods", "run": "runs"}


def __getattr__(name: str) -> Any:
    if name in _WITH_TORCH:
        return getattr(import_module(f"distillmatch.{_WITH_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
