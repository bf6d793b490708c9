"""Semi-supervised continual learning in which the unlabelled world is the replay buffer.

Names that need torch are in their rooms (`distillmatch.run.run`, `distillmatch.views`, …): a stream
can be built and looked at without it.
"""

from distillmatch.config import RunConfig, StreamConfig
from distillmatch.errors import DistillMatchError
from distillmatch.sources import ClassTree, Dataset, Part, load_source
from distillmatch.streams import Stream, build_stream

__all__ = [
    "ClassTree",
    "Dataset",
    "DistillMatchError",
    "Part",
    "RunConfig",
    "Stream",
    "StreamConfig",
    "build_stream",
    "load_source",
]
