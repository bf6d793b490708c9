"""Streams: the semi-supervised continual setting as index lists, without any training."""

from distillmatch.streams.coreset import Coreset, quotas, stored_sizes
from distillmatch.streams.saved import SavedStream
from distillmatch.streams.stream import EvaluationPart, Experience, Stream, build_stream
from distillmatch.streams.tasks import Task

__all__ = [
    "Coreset", "EvaluationPart", "Experience", "SavedStream", "Stream", "Task", "build_stream",
    "quotas", "stored_sizes",
]  # fmt: skip
