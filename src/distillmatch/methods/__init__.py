"""Methods: one file each, which says what is learned and by which loss; how is the engine's."""

from distillmatch.methods.forward import Batch, Logits
from distillmatch.methods.method import (
    Frozen,
    ImageSet,
    Lars,
    Method,
    NetworkBuilder,
    Passes,
    Past,
    PseudoLabels,
    TaskInfo,
    Terms,
    Training,
    count_labels,
)
from distillmatch.methods.parts import TEMPERATURE
from distillmatch.methods.registry import (
    find_method,
    given_name,
    make_method,
    method_names,
    with_options,
)
from distillmatch.methods.schedule import (
    Schedule,
    detector_schedule,
    fine_tuning_schedule,
    main_schedule,
)

__all__ = [
    "TEMPERATURE", "Batch", "Frozen", "ImageSet", "Lars", "Logits", "Method", "NetworkBuilder",
    "Passes", "Past", "PseudoLabels", "Schedule", "TaskInfo", "Terms", "Training", "count_labels",
    "detector_schedule", "find_method", "fine_tuning_schedule", "given_name", "main_schedule",
    "make_method", "method_names", "with_options",
]  # fmt: skip
