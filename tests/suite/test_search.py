"""Spaces of hyperparameters, and the ways to search them."""

import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from distillmatch.cli import main
from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.suite.search import Search, coordinate, grid, number_of_trials, sampled
from distillmatch.suite.space import (
    PAPER,
    Space,
    Values,
    check_space,
    paper_space,
    parse_space,
    start_values,
    with_values,
)
from distillmatch.suite.tuning import Selection

CONFIG = RunConfig(method="base")


def drive(search: Search, score: Callable[[Values], float | None]) -> list[list[Values]]:
    """Return the batches that a search proposes."""
    batches, points = [], next(search)
    while True:
        batches.append(points)
        try:
            points = search.send([score(point) for point in points])
        except StopIteration:
            return batches


def test_a_search_begins_where_the_paper_ended() -> None:
    """The paper's table has what it chose, with a coreset and without, and by its own words."""
    for recipe, threshold in (("paper", 0.85), ("as-written", 0.9)):
        for coreset, rate, baseline in ((400, 0.05, 0.1), (0, 0.5, 0.005)):
            dm = RunConfig(coreset=coreset, recipe=recipe)
            assert start_values(dm, PAPER) == {
                "learning_rate": 0.1,
                "consistency_weight": 1.0,
                "consistency_threshold": threshold,
                "true_positive_rate": rate,
            }
            gd = dm.replace(method="gd")
            assert start_values(gd, paper_space(gd)) == {"learning_rate": baseline}
    assert start_values(CONFIG.replace(learning_rate=0.7), {"learning_rate": (1.0, 2.0, 3.0)}) == {
        "learning_rate": 2.0
    }


def hill(point: Values) -> float:
    """A score with its top at the last learning rate and the second weight."""
    place = PAPER["learning_rate"].index(point["learning_rate"])
    return place - abs(float(point["consistency_weight"]) - 0.5)


def test_grid_and_coordinate_propose_what_they_say() -> None:
    space = {name: PAPER[name] for name in ("learning_rate", "consistency_weight")}
    (points,) = drive(grid(space), hill)
    assert [tuple(p.values()) for p in points] == list(product(*space.values()))
    start = {"learning_rate": 0.01, "consistency_weight": 5.0}
    first, second = drive(coordinate(space, start), hill)
    assert first == [{**start, "learning_rate": rate} for rate in space["learning_rate"]]
    assert second == [
        {"learning_rate": 0.5, "consistency_weight": w} for w in space["consistency_weight"]
    ]
    tried = {tuple(p.values()) for p in first + second}
    assert len(tried) == number_of_trials("coordinate", space, 0)


def test_a_coordinate_search_goes_on_from_what_did_not_fail() -> None:
    space: Space = {"learning_rate": (0.1, 0.5), "momentum": (0.0, 0.9)}
    start = {"learning_rate": 0.1, "momentum": 0.0}
    _, second = drive(
        coordinate(space, start), lambda p: None if p["learning_rate"] == 0.5 else -5.0
    )
    assert {p["learning_rate"] for p in second} == {0.1}
    _, second = drive(coordinate(space, start), lambda p: None)
    assert start in second, "where all fail, from where it began"


@pytest.mark.parametrize("kind", ["random", "tpe"])
def test_sampled_searches_are_repeatable_and_try_different_points(kind: Any) -> None:
    def batches() -> list[list[Values]]:
        return drive(sampled(PAPER, kind, 24, 3, seed=1), hill)

    first = batches()
    assert first == batches(), "so that an interrupted search proposes the same again"
    points = [tuple(point.values()) for batch in first for point in batch]
    assert len(points) == len(set(points)) == 24
    small: Space = {"momentum": (0.0, 0.5)}
    whole = drive(sampled(small, kind, 24, 3, seed=1), lambda p: None)
    assert sum(map(len, whole)) <= 2, "no more than there are"


def test_spaces_are_read_from_words_and_files(tmp_path: Path) -> None:
    dm = RunConfig()
    words = ["learning-rate=5e-3,0.1", "optimizer=sgd,adamw", "consistency-weight=1,2"]
    expected = {
        "learning_rate": (0.005, 0.1),
        "optimizer": ("sgd", "adamw"),
        "consistency_weight": (1.0, 2.0),
    }
    assert parse_space(words, dm) == expected
    file = tmp_path / "space.yaml"
    file.write_text(
        "learning-rate: [5e-3, 0.1]\noptimizer: [sgd, adamw]\nconsistency-weight: [1, 2]"
    )
    assert parse_space([str(file)], dm) == expected
    config = with_values(dm, {"consistency_weight": 2, "optimizer": "adamw"})
    assert config.options == {"consistency_weight": 2.0} and config.optimizer == "adamw"
    assert with_values(config, {"consistency_weight": 1}).options == {}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["learning_rate"], "learning_rate: No such file"),
        (["learning_rate=0.1", "momentum"], "takes name=value,value or one YAML file"),
        (["learning_rate=fast"], "--space: learning_rate must be a number, not 'fast'"),
        (["learning_rat=0.1"], "did you mean 'learning_rate'"),
        (["calibration=true"], "method 'dm' has no option 'calibration'"),
        (["coreset=0,400"], "coreset is part of the setting, not a hyperparameter"),
        (["device=cpu,cuda"], "device is part of the setting"),
        (["optimizer=[1"], "is no list of values"),
        (["learning_rate="], "--space: learning_rate: expected values, found an empty one in ''"),
        (["learning_rate=0.1,,0.5"], "found an empty one in '0.1,,0.5'"),
    ],
)
def test_a_wrong_space_is_refused_in_one_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tune", "--out", str(tmp_path / "out"), "--space", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_other_wrong_wishes_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    wishes: dict[str, Any] = {"search": "walk", "metric": "omega", "trials": 0, "together": 0}
    for name, value in wishes.items():
        with pytest.raises(ConfigError, match=name):
            Selection(**{name: value})
    twice = {"learning-rate": [0.1], "learning_rate": [0.5]}
    wrong: list[dict[str, Any]] = [{}, {"momentum": []}, {"momentum": 0.9}, twice]
    for lists in wrong:
        with pytest.raises(ConfigError):
            check_space(lists, CONFIG)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'distillmatch\[tune\]'"):
        Selection(search="tpe")
    Selection(search="grid")
