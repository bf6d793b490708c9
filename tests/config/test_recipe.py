"""The two recipes: what differs between them, and that nothing else does."""

from dataclasses import fields
from typing import Any

import pytest

from distillmatch.config import AS_WRITTEN, PAPER, RECIPES, Recipe, RunConfig, Statistics

TABLE = {
    "statistics.labeled",
    "statistics.teachers",
    "statistics.fine_tuning",
    "initial_weights",
    "last_batches",
    "distillation_factor",
    "teacher_start",
    "new_class_share",
    "detector",
    "pseudo_label_counts",
    "negative_stream",
    "consistency_threshold",
}
"""The points in which the paper's words and its published figures differ, as the protocol says."""


def points(recipe: Recipe) -> dict[str, Any]:
    own = {f.name: getattr(recipe, f.name) for f in fields(Recipe) if f.name != "statistics"}
    inner = {f"statistics.{f.name}": getattr(recipe.statistics, f.name) for f in fields(Statistics)}
    return {**own, **inner}


def test_the_recipes_differ_in_the_points_of_the_protocol_and_have_no_other() -> None:
    paper, as_written = points(PAPER), points(AS_WRITTEN)
    differing = {name for name in paper if paper[name] != as_written[name]}
    assert differing == paper.keys() == {"name", *TABLE}


@pytest.mark.parametrize("name", ["paper", "as-written"])
def test_a_configuration_names_its_recipe(name: Any) -> None:
    assert RunConfig(recipe=name).recipe_points is RECIPES[name]
    assert RECIPES[name].name == name
    assert RunConfig().recipe == "paper"
