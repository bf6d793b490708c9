"""Methods: one file each, saying what is trained by which loss; how is the engine's."""

from distillmatch.methods.method import (
    Batch,
    ImageSet,
    Method,
    NetworkBuilder,
    Passes,
    Scores,
    TaskInfo,
    Training,
    count_labels,
    no_rows,
)
from distillmatch.methods.registry import find_method, make_method, method_names
from distillmatch.methods.schedule import (
    Schedule,
    detector_schedule,
    fine_tuning_schedule,
    main_schedule,
)

__all__ = [
    "Batch",
    "ImageSet",
    "Method",
    "NetworkBuilder",
    "Passes",
    "Schedule",
    "Scores",
    "TaskInfo",
    "Training",
    "count_labels",
    "detector_schedule",
    "find_method",
    "fine_tuning_schedule",
    "main_schedule",
    "make_method",
    "method_names",
    "no_rows",
]
