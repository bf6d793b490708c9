"""Names of runs: they say what was run, can name a file anywhere, and tell all runs apart."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distillmatch.config import RunConfig, allowed_values
from distillmatch.errors import ConfigError
from distillmatch.suite.names import bound_config, run_name

CIFAR = {"source": "cifar100"}
GD = {"source": "tiny-imagenet", "method": "gd", "options": {"calibration": False}}
WORDS = {"recipe": "as-written", "method": "offline", "unlabeled": "none", "epochs": 5}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({**CIFAR, "splits": "authors"}, "cifar100-authors-random10-uniform-dm-seed1"),
        ({**CIFAR, "unlabeled": "positive", "coreset": 400, "seed": 3},
         "cifar100-parent-positive-coreset400-dm-seed3"),
        (GD, "tiny-imagenet-random10-uniform-gd-calibration=false-seed1"),
        (WORDS, "shapes-random10-offline-as-written-epochs=5-seed1"),
        ({**CIFAR, "class_order": ("a", "b"), "seed": 7, "data_dir": "x"},
         "cifar100-random10-uniform-dm-config=65b30f6209b8e5d5-seed7"),
    ],
)  # fmt: skip
def test_a_name_says_what_was_run_by_a_digest_where_words_are_too_many_or_in_doubt(
    options: dict[str, Any], name: str
) -> None:
    """A ledger's files are found by these names, whatever options come later."""
    assert run_name(RunConfig(**options)) == name


def test_the_bound_of_a_run_sees_labels_alone_and_is_trained_alike() -> None:
    config = RunConfig(
        source="cifar100", splits="authors", order="parent", unlabeled="random", random_classes=7,
        unlabeled_per_task=9, coreset=400, stored_share=0.5, recipe="as-written", epochs=50,
        network="wrn-16-2", learning_rate=0.3, strong_labels=True, weight_averaging=0.9, seed=2,
        options={"pseudo_labels": False},
    )  # fmt: skip
    bound = bound_config(config)
    assert bound == bound_config(bound) == RunConfig(
        method="offline", source="cifar100", splits="authors", order="parent", unlabeled="none",
        recipe="as-written", epochs=50, network="wrn-16-2", seed=2,
    )  # fmt: skip


TEXTS = st.sampled_from(
    ["dm", "gd", "offline", "dm-seed1", "a", "A", "mine:Method", "random5", "é", "uniform",
     "uniform-dm", "authors", "none", "as-written", "a-random5-uniform-b", "x-epochs=4",
     "wrn-10-1", "coreset400", "", "../dm", "CON", "a" * 300]
)  # fmt: skip
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("source", "method", "network"), TEXTS),
    "class_order": st.none() | st.lists(TEXTS, max_size=2),
    "task_sizes": st.none() | st.lists(st.integers(1, 20), max_size=3),
    "options": st.dictionaries(TEXTS, TEXTS | st.integers(0, 3), max_size=2),
}
PLACES = ("data_dir", "test_dir", "unlabeled_dirs", "cache_dir")
FIELDS = [name for name in RunConfig.model_fields if name not in PLACES]


def values_of(name: str) -> st.SearchStrategy[Any]:
    """Return what a field may be, often the same, so that pairs differ in little."""
    field = RunConfig.model_fields[name]
    if choices := allowed_values(field.annotation):
        return st.sampled_from(choices)
    default = field.get_default(call_default_factory=True)
    others = [True, 1, 2, 4, 10, 16, 400, 10**40, 1e-12, 0.1, 0.5, 1.0, 2.0]
    return SPECIAL.get(name, st.sampled_from([default, *others]))


@st.composite
def configs(draw: st.DrawFn) -> RunConfig | None:
    changed = draw(st.lists(st.sampled_from(FIELDS), max_size=4, unique=True))
    try:
        return RunConfig(**{name: draw(values_of(name)) for name in changed})
    except ConfigError:
        return None


@settings(max_examples=100, deadline=None)
@given(st.lists(configs(), min_size=8, max_size=12))
def test_two_different_runs_never_share_a_name(drawn: list[RunConfig | None]) -> None:
    known: dict[str, Any] = {}
    for config in filter(None, drawn):
        name = run_name(config)
        assert re.fullmatch(r"[a-z0-9][a-z0-9_=.,-]*-seed\d+", name) and len(name) <= 130
        assert known.setdefault(name, config.identity()) == config.identity()
