"""Spaces of hyperparameters, and the ways to search them."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from distillmatch.cli import main
from distillmatch.config import RunConfig
from distillmatch.suite.space import (
    PAPER,
    SEARCHES,
    Space,
    Values,
    paper_space,
    parse_space,
    start_values,
    with_values,
)
from distillmatch.suite.tuning import Selection


def batches(
    search: str, space: Space, start: Values, score: Callable[[Values], Any]
) -> list[list[Values]]:
    """Return the batches that a search tries."""
    tried: list[list[Values]] = []

    def try_points(points: list[Values]) -> list[float | None]:
        tried.append(points)
        return [score(point) for point in points]

    SEARCHES[search](space, start, try_points)
    return tried


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
    other = RunConfig(method="base", learning_rate=0.7)
    assert start_values(other, {"learning_rate": (1.0, 2.0, 3.0)}) == {"learning_rate": 2.0}


def test_grid_and_coordinate_propose_what_they_say() -> None:
    space = {name: PAPER[name] for name in ("learning_rate", "consistency_weight")}
    rates, weights = space.values()

    def hill(point: Values) -> float | None:
        """Fail at the highest rate; the top is at the one before, and at the second weight."""
        place = rates.index(point["learning_rate"])
        return None if place == 4 else place - abs(float(point["consistency_weight"]) - 0.5)

    start = {"learning_rate": 0.01, "consistency_weight": 5.0}
    (points,) = batches("grid", space, start, hill)
    assert [tuple(p.values()) for p in points] == list(product(rates, weights))
    first, second = batches("coordinate", space, start, hill)
    assert first == [{**start, "learning_rate": rate} for rate in rates]
    assert second == [{"learning_rate": rates[3], "consistency_weight": w} for w in weights]
    tried = {tuple(p.values()) for p in first + second}
    assert len(tried) == Selection().number_of_trials(space)
    _, second = batches("coordinate", space, start, lambda point: None)
    assert start in second, "where all fail, it goes on from where it began"


def test_spaces_are_read_from_words_and_files(tmp_path: Path) -> None:
    words = ["learning-rate=5e-3,0.1", "optimizer=sgd,adamw", "consistency-weight=1,1.0,2"]
    expected: Space = {
        "learning_rate": (0.005, 0.1),
        "optimizer": ("sgd", "adamw"),
        "consistency_weight": (1.0, 2.0),
    }
    file = tmp_path / "space.yaml"
    file.write_text("".join(f"{word.replace('=', ': [')}]\n" for word in words))
    assert parse_space(words, RunConfig()) == parse_space([str(file)], RunConfig()) == expected
    config = with_values(RunConfig(), {"consistency_weight": 2, "optimizer": "adamw"})
    assert config.options == {"consistency_weight": 2.0} and config.optimizer == "adamw"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["learning_rate"], "learning_rate: No such file"),
        (["learning_rate=0.1", "momentum"], "takes name=value,value or one YAML file"),
        (["learning_rate=fast"], "--space: learning_rate must be a number, not 'fast'"),
        (["learning_rat=0.1"], "did you mean 'learning_rate'"),
        (["coreset=0,400"], "coreset is part of the setting, not a hyperparameter"),
        (["optimizer=[1"], "is no list of values"),
        (["learning_rate=0.1,,0.5"], "found an empty one in '0.1,,0.5'"),
        (["weight-decay=0.1", "weight_decay=0.2"], "weight_decay is given twice"),
        (["weight_decay=0.1", "--runs-per-gpu", "2", "--device", "cpu"], "these runs use no GPU"),
    ],
)
def test_a_wrong_space_is_refused_in_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--out", str(tmp_path / "out"), "--space", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line and not (tmp_path / "out").exists()
