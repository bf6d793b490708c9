"""A learner on the disk: written whole, read as it was, and never trusted."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learner_folders import write_class
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
from distillmatch.errors import DiskError, DistillMatchError, LearnerError, LockedError
from distillmatch.files import read_record
from distillmatch.learner import read_state, saved
from distillmatch.learner.saved import HEAD
from distillmatch.runs.checkpoints import checksum
from distillmatch.runs.lock import FolderLock

ENVIRONMENT = images_of(GOLDFISH, CLOWNFISH, TROUT, SHARK, count=4, first=40)
VERSION_1 = Path(__file__).parents[1] / "fixtures" / "learner_version1"


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path) -> Path:
    small_learner(epochs=1).partial_fit(*task(SHARK, count=2)).save(tmp_path / "it")
    return tmp_path / "it"


@pytest.mark.parametrize(
    ("method", "coreset"), [("dm", 4), ("dm", 0), ("gd", 4), ("dr", 0), ("e2e", 0), ("base", 4)]
)
def test_a_loaded_learner_goes_on_as_if_it_had_never_been_away(
    method: str, coreset: int, tmp_path: Path
) -> None:
    learner = small_learner(method, coreset=coreset, epochs=1, accept=0.5)
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=4), name="spring")
    learner.partial_fit(*task(TROUT, count=4), unlabeled=ENVIRONMENT)
    learner.save(tmp_path / "it")
    loaded = ContinualLearner.load(tmp_path / "it")
    assert loaded.get_params() == learner.get_params()
    assert loaded.history_ == learner.history_
    assert loaded.classes_.tolist() == learner.classes_.tolist()
    assert loaded.normalization_ == learner.normalization_
    np.testing.assert_array_equal(loaded.coreset_.images, learner.coreset_.images)
    assert loaded.explain().by_class == learner.explain().by_class
    for one, other in zip(loaded.explain().examples, learner.explain().examples, strict=True):
        np.testing.assert_array_equal(one.image, other.image)
        assert (one.label, one.score) == (other.label, other.score)
    for again in (learner, loaded):
        again.partial_fit(*task(BOAT, count=3), unlabeled=ENVIRONMENT)
    np.testing.assert_array_equal(
        loaded.predict_proba(ENVIRONMENT), learner.predict_proba(ENVIRONMENT)
    )


def test_whole_numbers_stay_whole_numbers(tmp_path: Path) -> None:
    learner = small_learner("dm", epochs=1)
    learner.partial_fit(images_of(SHARK, BOAT, count=2), [5, 5, -3, -3])
    learner.partial_fit(images_of(TROUT, count=2), [0, 0], unlabeled=ENVIRONMENT)
    learner.save(tmp_path)
    loaded = ContinualLearner.load(tmp_path)
    assert loaded.classes_.tolist() == [-3, 5, 0] and loaded.predict(ENVIRONMENT).dtype == np.int64
    assert set(loaded.predict(ENVIRONMENT, reject=True).tolist()) <= {-3, 5, 0, "unknown"}
    assert loaded.explain().by_class == learner.explain().by_class
    assert loaded.history_ == learner.history_
    assert set(loaded.history_[0]["labeled_by_class"]) == {"-3", "5"}


def test_a_folder_in_which_another_process_learns_is_not_written(folder: Path) -> None:
    lock = FolderLock(folder)
    try:
        assert read_state(folder)["busy"]
        with pytest.raises(LockedError):
            small_learner().partial_fit(*task(GOLDFISH, count=2)).save(folder)
    finally:
        lock.release()
    assert read_state(folder)["labels"] == names_of(SHARK)


def test_what_was_saved_stays_until_the_new_one_is_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = ContinualLearner.load(folder)
    learner.partial_fit(*task(TROUT, count=2))
    before = sorted(path.name for path in folder.iterdir())

    def full(path: Path, content: str, doing: str) -> None:
        raise DiskError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(saved, "write_atomically", full)
        with pytest.raises(DiskError):
            learner.save(folder)
    assert set(before) < {path.name for path in folder.iterdir()}
    assert ContinualLearner.load(folder).classes_.tolist() == names_of(SHARK)
    learner.save(folder)
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".safetensors"]
    assert ContinualLearner.load(folder).classes_.tolist() == names_of(SHARK, TROUT)


def edited(change: Callable[[Any], None], seal: bool = True) -> Callable[[Path], None]:
    """Change what stands in `learner.json`, and renew its checksum."""

    def harm(folder: Path) -> None:
        record = json.loads((folder / HEAD).read_text())
        change(record)
        if seal:
            record["checksum"] = checksum(json.dumps(record["learner"], sort_keys=True), {})
        (folder / HEAD).write_text(json.dumps(record))

    return harm


def sealed(to: Any, *keys: str | int) -> Callable[[Path], None]:
    """Change one value of the learner, and renew the checksum."""

    def change(record: Any) -> None:
        place = record["learner"]
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to

    return edited(change)


def change_weights(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        [weights] = folder.glob("*.safetensors")
        weights.write_bytes(change(weights.read_bytes()))

    return harm


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (sealed("16", "image_size"), "image_size: input should be a valid integer"),
        (sealed(3, "history", 0, "seconds"), r"history\[0\].seconds: input should be a valid"),
        (sealed(["shark", "shark"], "labels"), "labels must all differ"),
        (sealed([3], "sizes"), "sizes must fit the labels"),
        (sealed(3, "settings", "epochz"), "settings.epochz is no field"),
        (edited(lambda it: it.update(version=3)), "version 1 or 2 of a learner, found 3"),
        (edited(lambda it: it.update(weights="../../x")), "names no file of weights"),
        (edited(lambda it: it["learner"].pop("labels"), seal=False), "its checksum differs"),
        (lambda folder: (folder / HEAD).write_text("{"), "expected a learner in JSON"),
        (lambda folder: (folder / HEAD).unlink(), "found a half-written one"),
        (lambda folder: next(folder.glob("*.safetensors")).unlink(), "not a whole learner"),
        (change_weights(lambda it: it[:-1] + bytes([it[-1] ^ 1])), "of its weights differs"),
        (change_weights(lambda it: it[:-10]), "not a whole learner"),
    ],
)
def test_a_folder_that_is_not_as_it_was_written_is_refused(
    harm: Callable[[Path], None], sentence: str, folder: Path
) -> None:
    harm(folder)
    with pytest.raises(LearnerError, match=sentence) as error:
        ContinualLearner.load(folder)
    assert "\n" not in str(error.value)


def test_a_newer_learner_that_another_process_writes_meanwhile_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer, read = ContinualLearner.load(folder).partial_fit(*task(BOAT, count=2)), read_record

    def replaced(*given: Any) -> Any:
        record = read(*given)
        if len(record["learner"]["labels"]) == 1:
            newer.save(folder)
        return record

    monkeypatch.setattr("distillmatch.learner.saved.read_record", replaced)
    assert ContinualLearner.load(folder).classes_.tolist() == names_of(SHARK, BOAT)


def test_a_learner_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """It was written before methods without networks of their own, and has what it said beside."""
    shutil.copytree(VERSION_1, tmp_path / "it")
    answers = json.loads((tmp_path / "it" / "answers.json").read_text())
    own = "learner_methods:TinyBackbone"
    learner = ContinualLearner.load(tmp_path / "it", device="cpu", allow_import=own)
    new = images_of(CLOWNFISH, BOAT, TROUT, SHARK, count=2, first=60)
    np.testing.assert_allclose(learner.predict_proba(new), answers["probabilities"], atol=1e-5)
    assert learner.predict(new, reject=True).tolist() == answers["rejecting"]
    assert learner.accept == 0.5 and len(learner.explain().examples) == 3
    before = read_state(tmp_path / "it")
    assert (before["settings"]["method"], before["settings"]["accept"]) == ("dm", 0.5)
    learner.partial_fit(*task(SHARK, count=2)).save(tmp_path / "it")
    names = [record["name"] for record in read_state(tmp_path / "it")["history"]]
    assert names == ["march", "april", "task 3"]


def test_what_is_left_to_a_learner_from_scratch_lasts_over_a_folder(tmp_path: Path) -> None:
    """It stores a few images, and more after it was loaded; a method that is named stores none."""
    learner = small_learner("auto", epochs=1)
    learner.partial_fit(*task(CLOWNFISH, GOLDFISH, count=3))
    assert len(learner.coreset_) == 6 and learner.coreset_.capacity == 75
    learner.save(tmp_path)
    loaded = ContinualLearner.load(tmp_path)
    assert loaded.get_params()["coreset"] is None
    loaded.partial_fit(*task(BOAT, count=2), unlabeled=images_of(SHARK, count=3))
    assert len(loaded.coreset_) == 8
    assert loaded.method_.config.options["accept"] == "newness"
    assert not len(small_learner("worldmatch", epochs=1).fit(*task(BOAT, TROUT, count=2)).coreset_)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("network", "trap:network"),
        ("method", "trap:method"),
        ("network", "os:abort"),
        ("network", "site:execsitecustomize"),
    ],
)
def test_code_that_a_folder_names_is_not_run(
    key: str, name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("trap", "sitecustomize"):
        (tmp_path / f"{module}.py").write_text("import os\nos.mkdir('ran')\n")
    write_class(tmp_path / "next", "red", 2)
    sealed(name, "settings", key)(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "sitecustomize", raising=False)
    before, path = sorted(tmp_path.iterdir()), list(sys.path)
    for words in (
        ["predict", "it", "next"],
        ["export", "it", "--onnx", "x.onnx"],
        ["learn", "it", "--labeled", "next"],
        ["predict", "it", "next", "--allow-import", "trap:other"],
    ):
        assert main(words) == 2
    with pytest.raises(DistillMatchError, match=f"--allow-import {name}"):
        ContinualLearner.load(folder)
    assert sorted(tmp_path.iterdir()) == before and sys.path == path


def test_only_the_allowed_name_is_imported(tmp_path: Path) -> None:
    learner = small_learner("learner_methods:Weighted", epochs=1).fit(*task(SHARK, count=2))
    learner.save(tmp_path)
    for allowed in ((), "learner_methods:Stubborn", ["learner_methods"]):
        with pytest.raises(DistillMatchError, match="a file does not decide what is imported"):
            ContinualLearner.load(tmp_path, allow_import=allowed)
    loaded = ContinualLearner.load(tmp_path, allow_import="learner_methods:Weighted")
    assert loaded.classes_.tolist() == learner.classes_.tolist()
