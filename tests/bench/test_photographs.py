"""Learners beside baselines on a folder of classes."""

from pathlib import Path

import numpy as np
import pytest
from learner_world import BOAT, CLOWNFISH, GOLDFISH, SHARK, SMALL, TROUT, write_classes

from distillmatch.bench.photographs import measure_photographs, nearest_mean, regression, split
from distillmatch.cli import main
from distillmatch.errors import ConfigError

LABELS = [name for name in "abcdefg" for _ in range(20)]


def test_a_split_shows_each_image_once_and_unseen_classes_to_the_camera_alone() -> None:
    plan = split(LABELS, months=3, per_class=4, seed=1)
    parts = [month.labeled for month in plan.months] + [month.camera for month in plan.months]
    parts += [plan.tested, plan.unseen]
    assert sorted(place for part in parts for place in part) == list(range(len(LABELS)))
    unseen = {LABELS[place] for place in plan.unseen}
    assert len(unseen) == 1 and len(plan.unseen) == 6
    classes = [{LABELS[place] for place in month.labeled} for month in plan.months]
    assert [len(names) for names in classes] == [2, 2, 2]
    learned = {name for names in classes for name in names}
    assert len(learned) == 6 and not unseen & learned
    assert {LABELS[place] for place in plan.tested} == learned
    assert all(len({LABELS[place] for place in month.camera}) == 7 for month in plan.months)
    assert split(LABELS, 3, 4, seed=1) == plan != split(LABELS, 3, 4, seed=2)
    with pytest.raises(ConfigError, match="expected at least 8 classes for 7 months"):
        split(LABELS, months=7, per_class=4, seed=1)


def test_logistic_regression_is_that_of_scikit_learn() -> None:
    """Its penalty is chosen among four; so the answers are those of one of scikit-learn's four."""
    linear = pytest.importorskip("sklearn.linear_model")
    draw = np.random.default_rng(1)
    slots = np.arange(90) % 3
    rows = (draw.normal(0, 1, (90, 12)) + np.eye(3, 12)[slots] * 1.5).astype(np.float32)
    asked = draw.normal(0, 1, (200, 12)).astype(np.float32)
    answers = regression(rows, slots, asked)
    agreement = [
        (linear.LogisticRegression(C=strength).fit(rows, slots).predict(asked) == answers).mean()
        for strength in (0.01, 0.1, 1.0, 10.0)
    ]
    assert max(agreement) >= 0.99


def test_the_nearest_mean_is_the_nearest() -> None:
    draw = np.random.default_rng(2)
    slots, rows, asked = np.arange(12) % 3, draw.normal(size=(12, 5)), draw.normal(size=(9, 5))
    means = [rows[slots == slot].mean(0) for slot in range(3)]
    plain = [int(np.argmin([((one - mean) ** 2).sum() for mean in means])) for one in asked]
    assert nearest_mean(rows, slots, asked).tolist() == plain


def test_learners_are_measured_over_splits(tmp_path: Path) -> None:
    base = {**SMALL, "method": "base", "epochs": 1}
    tuned = {"method": "features", "network": "learner_methods:TinyBackbone", "image_size": 16}
    learners = {"months": base, "at once": base, "tuned": {**tuned, "fine_tune": 1}}
    world, other = tmp_path / "world", tmp_path / "other"
    write_classes(world, BOAT, CLOWNFISH, GOLDFISH, SHARK, TROUT, count=8)
    write_classes(other, BOAT, count=4)
    found = measure_photographs(
        world, learners, at_once=["at once"], splits=2, months=2, labels=3, other=other
    )
    assert [one.name for one in found] == [*learners]  # the baselines stand on untuned features
    for one in found:
        assert len(one.figures["all"]) == 2
        assert all(0 <= value <= 100 for value in one.figures["all"])
        assert set(one.figures) >= {"all", "old", "new", "seconds", "bytes"}
    assert len(found[-1].figures["other"]) == 2 and "other" not in found[0].figures


def test_a_folder_without_enough_classes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_classes(tmp_path, BOAT, count=2)
    assert main(["bench", "photographs", str(tmp_path)]) == 2
    assert "expected at least 4 classes for 3 months" in capsys.readouterr().err
