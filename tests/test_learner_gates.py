"""A learner's gate: strangers are refused by it, and it stays what it was chosen to be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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

GATES = ("detector", "ensemble", "energy", "features", "softmax")
ENVIRONMENT = images_of(GOLDFISH, CLOWNFISH, TROUT, SHARK, count=4, first=40)
SEEN = images_of(GOLDFISH, BOAT, count=40, first=30)


def test_rejects_what_looks_like_no_class() -> None:
    learner = small_learner("dm", epochs=4, known_rate=0.5)
    learner.partial_fit(*task(GOLDFISH, BOAT, count=12))
    answers = learner.predict(images_of(GOLDFISH, BOAT, count=40, first=30), reject=True)
    assert set(answers) == {"unknown", *names_of(GOLDFISH, BOAT)}
    kept = answers != "unknown"
    plain = learner.predict(images_of(GOLDFISH, BOAT, count=40, first=30))
    assert (plain[kept] == answers[kept]).all()
    assert 0.2 < kept.mean() < 0.8
    generous = small_learner("dm", epochs=4, known_rate=1.0)
    generous.partial_fit(*task(GOLDFISH, BOAT, count=12))
    more = generous.predict(images_of(GOLDFISH, BOAT, count=40, first=30), reject=True)
    assert (more != "unknown").mean() > kept.mean()


def test_rejecting_keeps_whole_numbers_as_they_are() -> None:
    images, _ = task(GOLDFISH, BOAT, count=4)
    learner = small_learner("dm", epochs=1, known_rate=0.5).fit(images, [7] * 4 + [3] * 4)
    assert learner.classes_.tolist() == [3, 7]
    assert set(learner.predict(images, reject=True).tolist()) <= {3, 7, "unknown"}
    assert learner.predict(images).dtype == np.int64


@pytest.mark.parametrize("gate", GATES)
def test_every_gate_that_scores_refuses_strangers_by_a_calibrated_threshold(
    gate: str, tmp_path: Path
) -> None:
    answered = []
    for rate in (0.1, 0.5, 1.0):
        learner = small_learner("dm", options={"gate": gate}, known_rate=rate)
        learner.partial_fit(*task(GOLDFISH, BOAT, count=12), unlabeled=ENVIRONMENT)
        answers = learner.predict(SEEN, reject=True)
        kept = answers != "unknown"
        assert (answers[kept] == learner.predict(SEEN)[kept]).all()
        answered.append(kept.mean())
    assert answered == sorted(answered) and answered[0] < answered[-1]
    assert answered[0] < 0.6, "of new images about a tenth should be answered"
    learner.save(tmp_path)
    loaded = ContinualLearner.load(tmp_path)
    np.testing.assert_array_equal(loaded.predict(SEEN, reject=True), answers)
    learner.partial_fit(*task(TROUT, count=4), unlabeled=ENVIRONMENT)
    assert learner.history_[-1]["known_threshold"] is not None
    assert set(learner.predict(SEEN, reject=True)) <= {"unknown", *learner.classes_.tolist()}


def test_the_energy_that_is_refused_is_that_of_the_classifier() -> None:
    learner = small_learner("dm", options={"gate": "energy"}, known_rate=0.5)
    learner.partial_fit(*task(GOLDFISH, BOAT, count=12))
    probabilities = learner.predict_proba(SEEN)
    mean, spread = (np.array(one) for one in learner.normalization_.__dict__.values())
    pixels = (SEEN / 255 - mean) / spread
    with torch.no_grad():
        views = torch.from_numpy(pixels.transpose(0, 3, 1, 2)).float()
        logits = learner.method_.classifier(views)[:, :2].double().numpy()
    np.testing.assert_allclose(
        np.exp(logits) / np.exp(logits).sum(1, keepdims=True), probabilities, rtol=1e-3
    )
    energies = np.log(np.exp(logits).sum(axis=1))
    threshold = learner.history_[-1]["known_threshold"]
    clear = np.abs(energies - threshold) > 1e-4
    expected = energies >= threshold
    assert 0 < expected.mean() < 1
    answered = learner.predict(SEEN, reject=True) != "unknown"
    np.testing.assert_array_equal(answered[clear], expected[clear])


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("e2e", None),
        ("dm", {"gate": "everything"}),
        ("dm", {"gate": "newness"}),
        ("dm", {"gate": "newness-crossed"}),
        ("dm", {"pseudo_labels": False}),
    ],
)
def test_rejecting_by_what_gives_no_scores_is_refused(method: str, options: Any) -> None:
    learner = small_learner(method, epochs=1, options=options).fit(*task(SHARK, count=2))
    with pytest.raises(LearnerError, match=f"method '{method}' .* no threshold to tell strangers"):
        learner.predict(ENVIRONMENT, reject=True)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        *(({"gate": "energy"}, {"gate": gate}) for gate in ("detector", "ensemble", "features")),
        ({"gate": "softmax"}, {"gate": "energy"}),
        ({"gate": "detector"}, {"gate": "everything"}),
        (None, {"gate": "features"}),
        ({"pseudo_labels": False}, None),
        ({"gate": "softmax"}, {"gate": "softmax", "gate_confidence": 0.5}),
        ({"similarity": "inner"}, {"similarity": "cosine"}),
    ],
)
def test_another_gate_is_refused_in_one_sentence_once_something_is_learned(
    first: Any, then: Any, tmp_path: Path
) -> None:
    learner = small_learner("dm", epochs=1, options=first)
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=2), unlabeled=ENVIRONMENT)
    learner.save(tmp_path / "it")
    state, answers = content_of(tmp_path / "it"), learner.predict_proba(ENVIRONMENT)
    learner.set_params(options=then)
    for attempt in (
        lambda: learner.partial_fit(*task(BOAT, count=2), unlabeled=ENVIRONMENT),
        lambda: learner.save(tmp_path / "it"),
    ):
        with pytest.raises(
            LearnerError, match=r"^\w+ is .* in what was learned, and cannot become"
        ):
            attempt()
    np.testing.assert_array_equal(learner.predict_proba(ENVIRONMENT), answers)
    assert content_of(tmp_path / "it") == state
    learner.set_params(options=first).partial_fit(*task(BOAT, count=2), unlabeled=ENVIRONMENT)
    assert len(learner.classes_) == 3


def test_distillation_that_base_has_not_prepared_is_refused() -> None:
    learner = small_learner(epochs=1).partial_fit(*task(SHARK, count=2))
    learner.set_params(options={"base_distillation": True})
    with pytest.raises(LearnerError, match="base_distillation is False in what was learned"):
        learner.partial_fit(*task(BOAT, count=2), unlabeled=ENVIRONMENT)


def test_the_command_keeps_options_that_are_not_given_and_refuses_another_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    for name in ("red", "green"):
        write_class(tmp_path / "march", name, 4)
    write_class(tmp_path / "april", ODD, 4)
    march = ["learn", str(state), "--labeled", str(tmp_path / "march"), "--quiet", *SMALL]
    assert main([*march, "--options", "gate=energy", "momentum=0.8"]) == 0
    before = content_of(state)
    april = ["learn", str(state), "--labeled", str(tmp_path / "april"), "--quiet"]
    assert main([*april, "--options", "gate=ensemble"]) == 2
    refusal = capsys.readouterr().err
    assert "gate is 'energy' in what was learned" in refusal and refusal.count("\n") == 1
    assert content_of(state) == before
    assert main([*april, "--options", "momentum=0.7"]) == 0
    assert read_state(state)["settings"]["options"] == {"gate": "energy", "momentum": 0.7}
