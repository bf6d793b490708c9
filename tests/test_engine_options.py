"""Options of methods: every value of each runs, and shows in what is learned."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
import yaml
from test_engine import learned, same_weights, tiny
from torch import Tensor

from distillmatch.config import RunConfig, StreamConfig, allowed_values
from distillmatch.engine import TaskOutcome

# A method in which each option shows, and what else it takes for that in two short epochs.
SHOWN_BY: dict[str, tuple[str, dict[str, Any]]] = {
    "preset": ("dm", {"distillation_weight": 5.0}),
    "last_batches": ("base", {"batch": 5}),
    "base_distillation": ("base", {}),
    "dr_distillation": ("dr", {}),
    "distillation_scale": ("e2e", {}),
    "teacher_start": ("dr", {}),
    "labeled_statistics": ("e2e", {}),
    "accepted_statistics": ("dm", {"labeled_statistics": "apart", "true_positive_rate": 0.9}),
    "new_task_statistics": ("e2e", {}),
    "pseudo_label_counts": ("dm", {"true_positive_rate": 1.0}),
    "pseudo_label_targets": ("dm", {"true_positive_rate": 1.0}),
    "past_statistics": ("dm", {"true_positive_rate": 1.0}),
    "strong_statistics": ("dm", {"consistency_threshold": 0.2}),
    "strong_labels": ("dm", {"true_positive_rate": 1.0}),
    "calibration": ("gd", {}),
    "ensemble_share": ("gd", {}),
    "class_balancing": ("gd", {"coreset": 2}),
    "fine_tuning_data": ("gd", {"coreset": 6}),
    "fine_tuning_statistics": ("gd", {"coreset": 6}),
    "fine_tuning_unlabeled": ("gd", {"coreset": 6}),
    "balanced_trainings": ("e2e", {"coreset": 2}),
    "coreset_counts": ("dm", {"coreset": 6, "true_positive_rate": 1.0}),
    "consistency": ("dm", {"consistency_threshold": 0.2}),
    "consistency_from": ("dm", {"consistency_threshold": 0.2, "task_sizes": (2, 2, 2)}),
    "gate": ("dm", {"gate_confidence": 0.3, "true_positive_rate": 0.9}),
    "true_positive_rate_rule": ("dm", {"true_positive_rate": 0.1}),
    "detector_losses": ("dm", {"epochs": 4}),
    "epsilon_rule": ("dm", {"epochs": 4}),
    "similarity": ("dm", {"epochs": 4}),
}


def option_values() -> Iterator[tuple[str, object]]:
    """Every value of every option of a method that is a choice from a list or a switch."""
    for name, field in RunConfig.model_fields.items():
        if name in StreamConfig.model_fields or name in ("device", "precision"):
            continue
        values = allowed_values(field.annotation)
        if isinstance(field.default, bool):
            values = (True, False)
        yield from ((name, value) for value in values)


OPTION_VALUES = list(option_values())


@cache
def learned_once(config_text: str) -> tuple[list[TaskOutcome], dict[str, Tensor]]:
    return learned(RunConfig(**yaml.safe_load(config_text)))


@pytest.mark.parametrize(("name", "value"), OPTION_VALUES)
def test_every_named_value_of_an_option_runs_and_tells(name: str, value: object) -> None:
    """A value that is not the default learns other weights than the default does."""
    method, others = SHOWN_BY.get(name, ("dm", {}))
    given = tiny(**{"method": method, **others, name: value})
    outcomes, weights = learned_once(given.to_yaml())
    assert len(outcomes) == 3
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    usual = tiny(method=method, **others)
    if value != getattr(usual, name):
        _, by_default = learned_once(usual.to_yaml())
        assert not same_weights(by_default, weights, "classifier")


NUMBERS: dict[str, tuple[str, float, dict[str, Any]]] = {
    "momentum": ("base", 0.5, {}),
    "weight_decay": ("base", 0.1, {}),
    "learning_rate": ("base", 0.02, {}),
    "clip": ("dm", 0.01, {}),
    "base_clip": ("base", 0.01, {}),
    "temperature": ("e2e", 4.0, {}),
    "distillation_weight": ("dm", 5.0, {}),
    "consistency_weight": ("dm", 5.0, {"consistency_threshold": 0.2}),
    "consistency_threshold": ("dm", 0.2, {}),
    "count_smoothing": ("dm", 20.0, {"true_positive_rate": 0.5}),
    "weight_cap": ("dm", 0.5, {"true_positive_rate": 1.0}),
    "true_positive_rate": ("dm", 1.0, {}),
    "gate_confidence": ("dm", 0.2, {"gate": "softmax"}),
    "detector_share": ("dm", 1.0, {"epochs": 4}),
}
"""Options that are numbers, a method in which each shows, and another value than the default."""


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_tells_in_what_is_learned(name: str) -> None:
    method, value, others = NUMBERS[name]
    usual = tiny(method=method, **others)
    assert getattr(usual, name) != value
    _, by_default = learned_once(usual.to_yaml())
    _, weights = learned_once(usual.replace(**{name: value}).to_yaml())
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    assert not same_weights(by_default, weights, "classifier")


def test_the_options_of_every_method_are_tried() -> None:
    tried = {name for name, _ in OPTION_VALUES}
    assert {"gate", "similarity", "epsilon_rule", "pseudo_labels", "calibration"} <= tried
    assert SHOWN_BY.keys() <= tried
