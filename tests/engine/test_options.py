"""Options of runs and methods: each shows in what is learned, and in no other method's way."""

from functools import cache
from typing import Any

import pytest
import torch
import yaml
from small_runs import learned, same_weights, tiny
from torch import Tensor

from distillmatch.config import RunConfig

CONFIDENT = {"consistency_threshold": 0.2}
"""By which some strong views count in two short epochs."""
SHOWN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("base", {}, {"strong_labels": True}),
    ("base", {"coreset": 4}, {"stored_share": 0.5}),
    ("base", {}, {"learning_rate": 0.02}),
    ("base", {"epochs": 4}, {"schedule": "cosine"}),
    ("base", {"learning_rate": 0.01}, {"optimizer": "adamw"}),
    ("base", {}, {"momentum": 0.5}),
    ("base", {}, {"weight_decay": 0.1}),
    ("base", {}, {"weight_averaging": 0.9}),
    ("offline", {}, {"weight_averaging": 0.9}),
    *((name, {}, {"recipe": "as-written"}) for name in ("base", "e2e", "dr", "gd", "dm")),
    ("gd", {}, {"calibration": False}),
    ("dm", {}, {"pseudo_labels": False}),
    ("dm", {}, {"class_balancing": False}),
    ("dm", {"options": CONFIDENT}, {"consistency_weight": 0.0}),
    ("dm", {"options": CONFIDENT}, {"consistency_weight": 5.0}),
    ("dm", {}, {"distillation_weight": 5.0}),
    ("dm", {"epochs": 4}, CONFIDENT),
    ("dm", {}, {"true_positive_rate": 1.0}),
    *(
        ("worldmatch", {"epochs": 4}, {"accept": accept})
        for accept in ("newness", "two-teachers", "truth", "truth-new")
    ),
    ("worldmatch", {}, {"class_balancing": False}),
    ("worldmatch", {}, {"logit_adjustment": 1.0}),
    ("worldmatch", {"options": CONFIDENT}, {"consistency_weight": 0.0}),
    ("worldmatch", {}, {"distillation_weight": 5.0}),
    ("worldmatch", {}, CONFIDENT),
]
"""A method in which the last named option shows, and what else it takes for that."""


@cache
def learned_once(config_text: str) -> dict[str, Tensor]:
    return learned(RunConfig(**yaml.safe_load(config_text)))[1]


@pytest.mark.parametrize(("method", "others", "change"), SHOWN)
def test_every_option_shows_in_what_is_learned(
    method: str, others: dict[str, Any], change: dict[str, Any]
) -> None:
    usual = tiny(method=method, **others)
    of_run = {key: value for key, value in change.items() if key in RunConfig.model_fields}
    own = {key: value for key, value in change.items() if key not in of_run}
    changed = usual.replace(**of_run, options={**usual.options, **own})
    assert changed != usual
    by_default, weights = learned_once(usual.to_yaml()), learned_once(changed.to_yaml())
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    assert not same_weights(by_default, weights, "classifier")
