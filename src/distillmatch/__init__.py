"""Semi-supervised continual learning in which the unlabelled world is the replay buffer.

Names that need torch are in their rooms (`distillmatch.run.run`, `distillmatch.views`, …): a stream
can be built and looked at without it. `ContinualLearner` is here too, and brings torch in when it
is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from distillmatch.config import RunConfig, StreamConfig
from distillmatch.errors import DistillMatchError
from distillmatch.sources import ClassTree, Dataset, Part, load_source
from distillmatch.streams import Stream, build_stream

if TYPE_CHECKING:
    from distillmatch.learner import ContinualLearner

__all__ = [
    "ClassTree",
    "ContinualLearner",
    "Dataset",
    "DistillMatchError",
    "Part",
    "RunConfig",
    "Stream",
    "StreamConfig",
    "build_stream",
    "load_source",
]


def __getattr__(name: str) -> Any:
    if name == "ContinualLearner":
        return import_module("distillmatch.learner").ContinualLearner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
