"""Streams: the semi-supervised continual setting as index lists, without any training."""

from distillmatch.streams.coreset import Coreset, quotas, stored_sizes
from distillmatch.streams.saved import read_stream_config, saved_task_count
from distillmatch.streams.stream import (
    EvaluationPart,
    Experience,
    Stream,
    build_stream,
    check_fingerprint,
    evaluation_part,
    experience,
    true_slots_of_unlabeled,
)
from distillmatch.streams.tasks import Task
from distillmatch.streams.validation import validation_folds

__all__ = [
    "Coreset",
    "EvaluationPart",
    "Experience",
    "Stream",
    "Task",
    "build_stream",
    "check_fingerprint",
    "evaluation_part",
    "experience",
    "quotas",
    "read_stream_config",
    "saved_task_count",
    "stored_sizes",
    "true_slots_of_unlabeled",
    "validation_folds",
]
