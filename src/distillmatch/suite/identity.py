"""Which configurations are the same run, and what a run is called.

Methods do not look at everything that a configuration says: most options are one method's. Base
sees no unlabelled image, so its run serves every unlabelled stream; the bound sees nothing but
labelled images, so there is one for each class order. `shared_config` is the one place that knows.
"""

import json
import re
from hashlib import sha256
from typing import Any, get_args

from distillmatch.config import RunConfig
from distillmatch.config.run import FOLLOWS
from distillmatch.config.stream import UnlabeledKind
from distillmatch.methods.parts import HIGH_RATE
from distillmatch.run.result import recorded_config
from distillmatch.streams.orders import DEFAULT_TASKS

BOUND = "offline"
PLACE_KEYS = ("device", "precision", "resident_bytes")
"""Where a run was made; results of one configuration agree wherever they come from."""
UNLABELED_KEYS = (
    "unlabeled",
    "negative_rule",
    "random_classes",
    "unlabeled_per_task",
    "unlabeled_batch",
)
USED_BY_BOUND = (
    "source",
    "data_dir",
    "test_dir",
    "unlabeled_dirs",
    "tree",
    "image_size",
    "bad_images",
    "cache_dir",
    "order",
    "tasks",
    "task_sizes",
    "class_order",
    "labels_per_class",
    "label_fraction",
    "seed",
    "network",
    "pretrained",
    "initial_weights",
    "epochs",
    "batch",
    "last_batches",
    "learning_rate",
    "momentum",
    "weight_decay",
    "base_clip",
    "strong_labels",
    "device",
    "precision",
    "resident_bytes",
)
LEARNERS = ("dm", "base", "e2e", "dr", "gd")
_OF_DM = (
    "pseudo_labels",
    "consistency",
    "distillation",
    "consistency_weight",
    "distillation_weight",
    "consistency_threshold",
    "consistency_from",
    "strong_statistics",
    "coreset_counts",
    "pseudo_label_counts",
    "pseudo_label_targets",
    "pseudo_label_views",
    "gate",
    "gate_confidence",
    "true_positive_rate",
    "true_positive_rate_rule",
    "false_positive_rate",
    "similarity",
    "epsilon_rule",
    "detector_share",
    "detector_losses",
    "weight_averaging",
    "accepted_statistics",
)
LOOKED_AT_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_OF_DM, ("dm",)),
    "class_balancing": ("dm", "gd", "e2e"),
    "past_statistics": ("dm", "base"),
    "base_distillation": ("base",),
    "base_clip": ("base",),
    "dr_distillation": ("dr",),
    "distillation_scale": ("e2e", "dr"),
    "teacher_start": ("dr", "gd"),
    "labeled_statistics": LEARNERS,
    "new_task_statistics": ("e2e", "dr", "gd"),
    "calibration": ("gd",),
    "ensemble_share": ("gd",),
    "fine_tuning_statistics": ("dm", "gd"),
    "fine_tuning_unlabeled": ("e2e", "gd"),
    "balanced_trainings": ("e2e", "gd"),
}
"""Of the options that some of our learners have, which ones; own methods may look at any."""
LONGEST = 90
"""Characters of a name; file systems allow 255 bytes, and people read less."""


def shared_config(config: RunConfig) -> RunConfig:
    """Return the configuration that stands for all that are the same run as this one.

    What the method does not look at has its default value in it, or its preset's.
    """
    values = config.model_dump()
    if config.method in (*LEARNERS, BOUND) and config.method != "dm":
        # Only DM has pseudo-labels.
        values["strong_labels"] = config.strong_labels.removesuffix("-and-pseudo-labels")
    if config.method in LEARNERS:
        given = {key: values[key] for key in FOLLOWS}
        usual = RunConfig(**given).model_dump()
        looks = {key for key, methods in LOOKED_AT_BY.items() if config.method in methods}
        values |= {key: usual[key] for key in LOOKED_AT_BY.keys() - looks}
    if config.method == BOUND:
        values = {key: values[key] for key in (*USED_BY_BOUND, "method")}
        if config.learning_rate == HIGH_RATE:
            values["learning_rate"] = None
    elif config.method == "base" and not config.base_distillation:
        values = {key: value for key, value in values.items() if key not in UNLABELED_KEYS}
        # The preset would bring its own reading of a stream that is not looked at.
        values["negative_rule"] = RunConfig().negative_rule
    if config.order == "parent":
        values["tasks"] = None
    elif config.tasks is None and config.task_sizes != ():
        values["tasks"] = len(config.task_sizes or ()) or DEFAULT_TASKS
    return RunConfig(**values)


def bound_config(config: RunConfig) -> RunConfig:
    """Return the run of the bound that Ω of this run is measured against, the paper's."""
    usual = config.replace(method=BOUND, learning_rate=None, strong_labels="none")
    return shared_config(usual)


def identity(config: RunConfig) -> dict[str, Any]:
    """Return what makes this run another one than others: not the machine, not its folders."""
    recorded = recorded_config(shared_config(config))
    return {key: value for key, value in recorded.items() if key not in PLACE_KEYS}


def run_name(config: RunConfig) -> str:
    """Return the name of a run: setting, method, what differs from the defaults, and seed.

    It can name a file anywhere, and two different runs never share one: what words cannot say
    briefly or without doubt is said by a digest of the configuration.
    """
    values = identity(config)
    setting = [values["source"], values["order"] + str(values["tasks"] or "")]
    if values["method"] != BOUND:
        setting.append(values["unlabeled"])
    if values["coreset"]:
        setting.append(f"coreset{values['coreset']}")
    setting.append(values["method"])
    head, options, seed = "-".join(setting), _option_words(values), f"seed{values['seed']}"
    name = "-".join([head, *options.values(), seed])
    clear = all(_is_plain(values[key]) for key in ("source", "method")) and all(
        word.count("=") == 1 for word in options.values()
    )
    if clear and len(name) <= LONGEST and _SAFE.fullmatch(name):
        return name
    # Not of what is as it would be anyway: an option that comes later renames no earlier result.
    said = {key: values[key] for key in (*_SAID_BY_THE_SETTING, *options)}
    digest = sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
    head = re.sub(r"[^a-z0-9]+", "-", head.lower())[: LONGEST // 2].strip("-")
    # Rows of a table differ in switches most often: they are worth a word beside the digest.
    switches = [word for key, word in options.items() if isinstance(values[key], bool)]
    return "-".join([head, *switches[:1], f"config={digest}", seed[:24]])


_SAFE = re.compile(r"[a-z0-9_=.,-]+")
_RESERVED = re.compile("|".join([r"(random|parent|coreset|seed)\d*", *get_args(UnlabeledKind)]))
_SAID_BY_THE_SETTING = ("source", "order", "tasks", "unlabeled", "coreset", "method", "seed")


def _is_plain(text: str) -> bool:
    """Tell whether a source's or method's name cannot be taken for another part of a run's name."""
    return bool(re.fullmatch(r"[a-z0-9]+(-[a-z]+)*", text)) and not any(
        _RESERVED.fullmatch(word) for word in text.split("-")
    )


def _option_words(values: dict[str, Any]) -> dict[str, str]:
    """Return `key=value` by key for each option that is not as its source and preset have it."""
    given = {key: values[key] for key in ("source", *FOLLOWS)}
    defaults = recorded_config(RunConfig(**given))
    defaults["preset"] = RunConfig().preset
    defaults["labeled_statistics"] = RunConfig(preset=values["preset"]).labeled_statistics
    return {
        key: f"{key}={_value_word(value)}"
        for key, value in values.items()
        if key not in _SAID_BY_THE_SETTING and value != defaults[key]
    }


def _value_word(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return ",".join(map(str, value))
    # What is no safe word here makes the whole name one with a digest.
    return value if isinstance(value, str) else json.dumps(value)
