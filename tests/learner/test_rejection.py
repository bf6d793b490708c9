"""Unknown images that a learner rejects, and what its thresholds hang on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learner_folders import ODD, SMALL, content_of, write_class
from learner_world import (
    BOAT,
    CLOWNFISH,
    GOLDFISH,
    SHARK,
    TROUT,
    images_of,
    names_of,
    small_learner,
    task,
)

from distillmatch import ContinualLearner
from distillmatch.cli import main
from distillmatch.errors import LearnerError
from distillmatch.learner import read_state

ENVIRONMENT = images_of(GOLDFISH, CLOWNFISH, TROUT, SHARK, count=4, first=40)
SEEN = images_of(GOLDFISH, BOAT, count=40, first=30)


@pytest.mark.parametrize("recipe", ["paper", "as-written"])
def test_unknown_images_are_rejected_by_a_calibrated_threshold(recipe: str, tmp_path: Path) -> None:
    answered = []
    for rate in (0.1, 0.5, 1.0):
        learner = small_learner("dm", options={"recipe": recipe}, accept=rate)
        learner.partial_fit(*task(GOLDFISH, BOAT, count=12), unlabeled=ENVIRONMENT)
        answers = learner.predict(SEEN, reject=True)
        kept = answers != "unknown"
        assert (answers[kept] == learner.predict(SEEN)[kept]).all()
        answered.append(kept.mean())
    assert answered == sorted(answered) and answered[0] < answered[-1]
    assert answered[0] < 0.6, "of new images about a tenth should be answered"
    with pytest.raises(LearnerError, match=r"set its threshold for accept=1 when it learned"):
        learner.predict(SEEN, reject=True, accept=0.9)
    learner.save(tmp_path)
    loaded = ContinualLearner.load(tmp_path)
    np.testing.assert_array_equal(loaded.predict(SEEN, reject=True), answers)
    learner.partial_fit(*task(TROUT, count=4), unlabeled=ENVIRONMENT)
    assert learner.history_[-1]["known_threshold"] is not None
    assert set(learner.predict(SEEN, reject=True)) <= {"unknown", *learner.classes_.tolist()}


@pytest.mark.parametrize(("method", "options"), [("e2e", None), ("dm", {"pseudo_labels": False})])
def test_rejecting_by_what_gives_no_scores_is_refused(method: str, options: Any) -> None:
    learner = small_learner(method, epochs=1, options=options).fit(*task(SHARK, count=2))
    for ask in (learner.predict_familiarity, lambda images: learner.predict(images, reject=True)):
        with pytest.raises(LearnerError, match=f"method '{method}' .* has no score for unknown"):
            ask(ENVIRONMENT)


def test_worldmatch_is_as_familiar_with_an_image_as_it_is_certain_of_a_class() -> None:
    learner = small_learner("worldmatch", epochs=1).fit(*task(SHARK, BOAT, count=4))
    certain = learner.predict_proba(ENVIRONMENT).max(axis=1)
    np.testing.assert_allclose(learner.predict_familiarity(ENVIRONMENT), certain, atol=1e-5)
    assert learner.history_[-1]["known_threshold"] is not None


@pytest.mark.parametrize(
    ("method", "first", "then"),
    [
        ("dm", None, {"options": {"pseudo_labels": False}}),
        ("dm", {"pseudo_labels": False}, {"options": None}),
        ("dm", None, {"options": {"recipe": "as-written"}}),
        ("worldmatch", None, {"options": {"accept": "newness"}}),
        ("base", None, {"method": "dm"}),
        ("base", None, {"network": "wrn-16-1"}),
        ("base", None, {"image_size": 32}),
        ("base", None, {"coreset": 9}),
        ("base", None, {"seed": 2}),
    ],
)
def test_what_networks_and_thresholds_hang_on_cannot_change_once_something_is_learned(
    method: str, first: Any, then: Any, tmp_path: Path
) -> None:
    learner = small_learner(method, epochs=1, options=first)
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=2), unlabeled=ENVIRONMENT)
    learner.save(tmp_path / "it")
    before = learner.get_params()
    state, answers = content_of(tmp_path / "it"), learner.predict_proba(ENVIRONMENT)
    learner.set_params(**then)
    for attempt in (
        lambda: learner.partial_fit(*task(BOAT, count=2), unlabeled=ENVIRONMENT),
        lambda: learner.save(tmp_path / "it"),
    ):
        with pytest.raises(LearnerError, match=r"^\w+ is .* in what was learned, and cannot"):
            attempt()
    np.testing.assert_array_equal(learner.predict_proba(ENVIRONMENT), answers)
    assert content_of(tmp_path / "it") == state
    others = {"consistency_weight": 0.5} if method == "dm" else {}
    learner.set_params(**before)
    learner.set_params(options={**(first or {}), **others, "momentum": 0.8, "optimizer": "adamw"})
    learner.partial_fit(*task(BOAT, count=2), unlabeled=ENVIRONMENT)
    assert learner.classes_.tolist() == [*names_of(CLOWNFISH, GOLDFISH), *names_of(BOAT)]


def test_the_command_keeps_options_that_are_not_given_and_refuses_what_cannot_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    for name in ("red", "green"):
        write_class(tmp_path / "march", name, 4)
    write_class(tmp_path / "april", ODD, 4)
    march = ["learn", str(state), "--labeled", str(tmp_path / "march"), "--quiet", *SMALL]
    assert main([*march, "--options", "pseudo_labels=false", "momentum=0.8"]) == 0
    april = ["learn", str(state), "--labeled", str(tmp_path / "april"), "--quiet"]
    assert main([*april, "--options", "pseudo_labels=true"]) == 2
    assert "pseudo_labels is False in what was learned" in capsys.readouterr().err
    assert main([*april, "--options", "momentum=0.7"]) == 0
    assert read_state(state)["settings"]["options"] == {"pseudo_labels": False, "momentum": 0.7}
