"""A learner of features that also tunes a copy of its network, and keeps the better answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interrupted_runs import ALWAYS
from learner_world import (
    BOAT,
    CLOWNFISH,
    SHARK,
    TROUT,
    CrashError,
    DiesIn,
    images_of,
    task,
    write_classes,
)

from distillmatch import ContinualLearner
from distillmatch.cli import main
from distillmatch.errors import ConfigError, LearnerError
from distillmatch.learner import fine_tuning, learn
from distillmatch.report.learner_report import accuracy_sentences
from distillmatch.views import plain_views

OWN = "learner_methods:TinyBackbone"
TINY: dict[str, Any] = {"method": "features", "network": OWN, "image_size": 16, "device": "cpu"}
NEW = images_of(CLOWNFISH, BOAT, TROUT, SHARK, count=4, first=60)
CAMERA = images_of(CLOWNFISH, BOAT, TROUT, SHARK, count=12, first=40)
MARCH = task(CLOWNFISH, BOAT, TROUT, SHARK, count=16)


@pytest.fixture(autouse=True)
def _quick(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test a cache of its own, and a rate at which a tiny network learns quickly."""
    del cache
    monkeypatch.setitem(fine_tuning.TRAINING, "learning_rate", 0.02)


def tuned(epochs: int = 12, **others: Any) -> ContinualLearner:
    return ContinualLearner(**{**TINY, "fine_tune": epochs, **others})


def comparison_of(learner: ContinualLearner) -> dict[str, Any]:
    return dict(learner.history_[-1]["fine_tuned"])


def test_a_copy_that_is_better_on_held_out_images_answers_beside_the_frozen_network(
    tmp_path: Path,
) -> None:
    frozen = ContinualLearner(**TINY).partial_fit(*MARCH)
    learner = tuned(40).partial_fit(*MARCH)
    comparison = comparison_of(learner)
    assert comparison["kept"] and comparison["tuned"] > comparison["frozen"]
    assert comparison["labeled"] == 4 * 4 and comparison["past"] == 0
    tests = task(CLOWNFISH, BOAT, TROUT, SHARK, count=20, first=100)
    assert learner.score(*tests) > frozen.score(*tests)
    np.testing.assert_array_equal(learner.predict_familiarity(NEW), frozen.predict_familiarity(NEW))
    views = plain_views(torch.from_numpy(NEW).permute(0, 3, 1, 2), learner.normalization_)
    with torch.no_grad():
        exported = learner.classifier_(views).softmax(1).numpy()
    np.testing.assert_allclose(exported, learner.predict_proba(NEW), atol=1e-5)
    learner.save(tmp_path / "it")
    loaded = ContinualLearner.load(tmp_path / "it", device="cpu", allow_import=OWN)
    np.testing.assert_array_equal(loaded.predict_proba(NEW), learner.predict_proba(NEW))
    assert loaded.get_params()["fine_tune"] == 40


def test_where_it_does_not_help_the_frozen_network_answers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(fine_tuning.TRAINING, "learning_rate", 10.0)
    frozen = ContinualLearner(**TINY).partial_fit(*MARCH, unlabeled=CAMERA)
    learner = tuned().partial_fit(*MARCH, unlabeled=CAMERA)
    comparison = comparison_of(learner)
    assert not comparison["kept"] and comparison["tuned"] <= comparison["frozen"]
    np.testing.assert_array_equal(learner.predict_proba(NEW), frozen.predict_proba(NEW))


def test_a_copy_that_forgets_past_classes_is_not_used() -> None:
    learner = tuned(0).partial_fit(*task(CLOWNFISH, BOAT, count=16), unlabeled=CAMERA)
    assert learner.history_[-1]["fine_tuned"] is None
    learner.set_params(fine_tune=12)
    learner.partial_fit(*task(TROUT, SHARK, count=16), unlabeled=CAMERA)
    comparison = comparison_of(learner)
    assert comparison["past"] >= 2 and comparison["same"] is not None
    gained = comparison["tuned"] - comparison["frozen"]
    assert comparison["kept"] == (gained > 100 - comparison["same"])
    (sentence, *_) = accuracy_sentences(learner.history_)
    assert "that look like past classes" in sentence


@pytest.mark.parametrize("lacking", ["labels", "camera"])
def test_nothing_is_tuned_where_nothing_could_tell_whether_it_helps(lacking: str) -> None:
    learner = tuned(0).partial_fit(*task(CLOWNFISH, BOAT, count=8))
    learner.set_params(fine_tune=5)
    count, camera = (3, CAMERA) if lacking == "labels" else (8, None)
    learner.partial_fit(*task(TROUT, SHARK, count=count), unlabeled=camera)
    assert not comparison_of(learner)["kept"] and comparison_of(learner)["tuned"] is None
    (sentence,) = accuracy_sentences(learner.history_)
    assert "was not tuned" in sentence
    assert ("four labels" if lacking == "labels" else "camera images") in sentence


def test_an_interrupted_tuning_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    """What is measured after it is of both networks, though test images were read before."""
    shown = {"labeled": tmp_path / "march", "unlabeled": [tmp_path / "camera"]}
    write_classes(tmp_path / "march", CLOWNFISH, BOAT, TROUT, SHARK, count=16)
    write_classes(tmp_path / "camera", CLOWNFISH, BOAT, TROUT, SHARK, count=12, first=40)
    write_classes(tmp_path / "test", CLOWNFISH, BOAT, TROUT, SHARK, count=8, first=80)
    settings = {**TINY, "fine_tune": 20}
    given: dict[str, Any] = {**shown, "settings": settings, "test": tmp_path / "test"}
    whole = learn(tmp_path / "whole", **given, allow_import=[OWN])
    assert whole["fine_tuned"]["kept"] and whole["test"]["all"] is not None
    with pytest.raises(CrashError):
        learn(tmp_path / "broken", **given, progress=DiesIn(12), checkpoint_seconds=ALWAYS)
    said: list[str] = []
    resumed = learn(tmp_path / "broken", **given, tell=said.append)
    assert any("continuing the unfinished task" in sentence for sentence in said)
    assert resumed["fine_tuned"] == whole["fine_tuned"] and resumed["test"] == whole["test"]
    one, other = (
        ContinualLearner.load(tmp_path / name, device="cpu", allow_import=OWN)
        for name in ("whole", "broken")
    )
    np.testing.assert_array_equal(one.predict_proba(NEW), other.predict_proba(NEW))
    assert 100 * one.score(tmp_path / "test") == pytest.approx(whole["test"]["all"])


def test_it_is_refused_where_there_is_no_pretrained_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for others in ({"method": "dm"}, {"network": "identity"}, {"fine_tune": -1}):
        with pytest.raises((ConfigError, LearnerError), match="fine_tune"):
            tuned(**others).partial_fit(*MARCH)
    write_classes(tmp_path / "march", BOAT, count=2)
    words = ["learn", str(tmp_path / "it"), "--labeled", str(tmp_path / "march"), "--fine-tune"]
    assert main([*words, "--method", "dm", "--quiet"]) == 2
    assert "fine_tune is for method 'features'" in capsys.readouterr().err
