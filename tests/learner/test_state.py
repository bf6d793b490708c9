"""A learner in its folder: months learned one after the other, whatever comes in between."""

import errno
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupted_runs import ALWAYS
from learner_folders import SMALL as WORDS
from learner_folders import content_of, write_class
from learner_world import (
    BOAT,
    CLOWNFISH,
    GOLDFISH,
    SHARK,
    SMALL,
    TROUT,
    CrashError,
    DiesIn,
    images_of,
    names_of,
    task,
    write_classes,
    write_images,
)

from distillmatch import ContinualLearner
from distillmatch.cli import main
from distillmatch.engine import NoProgress
from distillmatch.errors import DiskError, LearnerError, SourceError
from distillmatch.learner import learn, read_state
from distillmatch.learner.accuracy import hold_out
from distillmatch.learner.saved import HEAD
from distillmatch.runs import Interrupted
from distillmatch.sources.images import ImageFile

WITH_DETECTOR = {**SMALL, "method": "dm"}
SETTINGS = {**SMALL, "method": "e2e"}


class Interrupts(NoProgress):
    """Presses Ctrl-C in the first epoch."""

    def advance(self, done: float, doing: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two months of labeled images and sights, and a folder of test images."""
    root = tmp_path_factory.mktemp("world")
    write_classes(root / "march", CLOWNFISH, GOLDFISH, count=10)
    write_classes(root / "april", TROUT, count=10)
    write_images(root / "camera", images_of(GOLDFISH, TROUT, SHARK, count=4, first=40))
    write_classes(root / "test", CLOWNFISH, GOLDFISH, TROUT, SHARK, count=5, first=60)
    (root / "empty").mkdir()
    return root


@pytest.fixture(name="state")
def state_fixture(world: Path, tmp_path: Path) -> Path:
    """A learner of the first month."""
    learn(tmp_path / "fish", labeled=world / "march", settings=SETTINGS)
    return tmp_path / "fish"


def weights(state: Path) -> list[str]:
    """The name of the weights, which is a hash of them."""
    return [path.name for path in state.glob("weights-*")]


def test_two_months_with_a_test_folder(world: Path, tmp_path: Path) -> None:
    state = tmp_path / "fish"
    first = learn(state, labeled=world / "march", test=world / "test", settings=WITH_DETECTOR)
    assert (first["name"], first["number"], first["labeled"]) == ("march", 1, 20)
    assert first["test"]["unknown"] == {"shark": 5, "trout": 5}
    assert first["test"]["images"] == 10
    assert first["test"]["old"] is None and first["test"]["forgotten"] is None
    assert first["test"]["new"] == first["test"]["all"]
    before = ContinualLearner.load(state).score(*task(CLOWNFISH, GOLDFISH, count=5, first=60))
    second = learn(
        state,
        labeled=world / "april",
        unlabeled=[world / "camera", world / "empty"],
        test=world / "test",
        name="in april",
    )
    tested, learner = second["test"], ContinualLearner.load(state)
    assert second["name"] == "in april"
    assert (second["added"], second["seen"]) == (names_of(TROUT), 12)
    now = 100 * learner.score(*task(CLOWNFISH, GOLDFISH, count=5, first=60))
    assert tested["old"] == pytest.approx(now)
    assert tested["old_before"] == pytest.approx(100 * before)
    assert tested["forgotten"] == pytest.approx(100 * before - now)
    new = 100 * learner.score(*task(TROUT, count=5, first=60))
    assert tested["by_class"]["trout"] == tested["new"] == pytest.approx(new)
    assert tested["all"] == pytest.approx((2 * now + new) / 3)
    known = names_of(CLOWNFISH, GOLDFISH, TROUT)
    assert {label: sum(answers.values()) for label, answers in tested["answers"].items()} == (
        dict.fromkeys(known, 5)
    )
    images = images_of(CLOWNFISH, GOLDFISH, TROUT, count=5, first=60)
    accepted = (learner.predict(images, reject=True) != "unknown").mean()
    assert tested["accepted"] == pytest.approx(100 * accepted)
    assert (tested["nearest_mean"], tested["unknown"]) == (None, {"shark": 5})
    assert learner.history_ == [first, second]
    summary = read_state(state)
    assert summary["history"] == [first, second]
    assert summary["labels"] == learner.classes_.tolist()
    assert summary["settings"]["method"] == "dm"
    assert summary["bytes"] == sum(path.stat().st_size for path in state.iterdir())
    assert not summary["unfinished"] and not summary["busy"]


def test_without_a_test_folder_some_images_are_held_out(world: Path, tmp_path: Path) -> None:
    state = tmp_path / "fish"
    first = learn(state, labeled=world / "march", held_out=0.2, settings=SETTINGS)
    assert (first["labeled"], first["test"]["on"], first["test"]["images"]) == (16, "held-out", 4)
    second = learn(state, labeled=world / "april", held_out=0.2)
    assert second["test"]["old"] is None
    assert second["test"]["new"] is not None
    third = learn(state, labeled=world / "april", held_out=0, again=True)
    assert third["test"] is None
    assert (third["labeled"], third["returned"], third["added"]) == (10, names_of(TROUT), [])


def test_held_out_are_a_share_of_every_class_and_never_all_of_one() -> None:
    files = [ImageFile.at(f"{number}.png") for number in range(23)]
    labels = ["many"] * 20 + ["two"] * 2 + ["one"]
    held = hold_out(files, labels, 0.25)
    assert (held[:20].sum(), held[20:].sum()) == (5, 0)
    assert hold_out(files, labels, 0.9)[20:].tolist().count(True) == 1
    moved = [ImageFile.at(f"elsewhere/{number}.png") for number in range(23)]
    np.testing.assert_array_equal(hold_out(moved, labels, 0.25), held)


def test_a_task_that_died_is_continued_to_the_same_end(world: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    april: dict[str, Any] = {"labeled": world / "april", "unlabeled": [world / "camera"]}
    for state in (whole, broken):
        learn(state, labeled=world / "march", settings=WITH_DETECTOR)
    learn(whole, **april)
    before = content_of(broken)
    for epochs in (1, 1):  # it dies, and once more after it was continued
        with pytest.raises(CrashError):
            learn(broken, **april, progress=DiesIn(epochs), checkpoint_seconds=ALWAYS)
        assert before.items() <= content_of(broken).items()
        assert read_state(broken)["unfinished"]
    messages: list[str] = []
    record = learn(broken, **april, tell=messages.append)
    assert any("continuing the unfinished task" in sentence for sentence in messages)
    assert weights(broken) == weights(whole)
    assert record["losses"] == read_state(whole)["history"][-1]["losses"]
    assert not (broken / "checkpoints").exists()


def test_ctrl_c_keeps_what_was_done(world: Path, tmp_path: Path) -> None:
    state = tmp_path / "fish"
    with pytest.raises(Interrupted, match="the same command continues"):
        learn(state, labeled=world / "march", settings=SETTINGS, progress=Interrupts())
    with pytest.raises(LearnerError, match="found none"):
        read_state(state)
    messages: list[str] = []
    learn(state, labeled=world / "march", settings=SETTINGS, tell=messages.append)
    assert any("continuing" in sentence for sentence in messages)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_signal_after_the_state_was_replaced_loses_and_repeats_nothing(
    error: type[BaseException], world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"labeled": world / "march", "settings": SETTINGS}
    write = ContinualLearner.write

    def killed(learner: ContinualLearner, folder: Path) -> None:
        write(learner, folder)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(ContinualLearner, "write", killed)
        with pytest.raises(error):
            learn(tmp_path / "fish", **given)
    messages: list[str] = []
    record = learn(tmp_path / "fish", **given, tell=messages.append)
    assert record["number"] == 1 and "is learned already" in messages[-1]
    assert len(read_state(tmp_path / "fish")["history"]) == 1


def test_other_images_do_not_continue_an_unfinished_task(world: Path, state: Path) -> None:
    with pytest.raises(CrashError):
        learn(state, labeled=world / "april", progress=DiesIn(1), checkpoint_seconds=ALWAYS)
    before = content_of(state)
    other: dict[str, Any] = {"labeled": world / "april", "unlabeled": [world / "camera"]}
    with pytest.raises(LearnerError, match="unfinished task was begun with other images"):
        learn(state, **other)
    assert content_of(state) == before
    assert learn(state, **other, drop_unfinished=True)["number"] == 2
    assert not (state / "checkpoints").exists()


def test_a_checkpoint_of_a_finished_task_is_not_taken_up(world: Path, tmp_path: Path) -> None:
    state, given = tmp_path / "fish", {"labeled": world / "march", "settings": SETTINGS}
    with pytest.raises(CrashError):
        learn(state, **given, progress=DiesIn(1), checkpoint_seconds=ALWAYS)  # type: ignore[arg-type]
    stale = {one.name: one.read_bytes() for one in (state / "checkpoints").iterdir()}
    learn(state, **given)  # type: ignore[arg-type]
    (state / "checkpoints").mkdir()
    for name, content in stale.items():  # as if it had died before it could remove them
        (state / "checkpoints" / name).write_bytes(content)
    messages: list[str] = []
    assert learn(state, labeled=world / "april", tell=messages.append)["number"] == 2
    assert messages == []


def test_a_repeated_command_learns_nothing_and_finishes_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_class(tmp_path / "march" / "labeled", "red", 6)
    write_class(tmp_path / "camera", "green", 3)
    state, page = tmp_path / "state", tmp_path / "state" / "report.html"
    words = ["learn", str(state), "--labeled", str(tmp_path / "march" / "labeled")]
    words += ["--unlabeled", str(tmp_path / "camera")]
    assert main([*words, *WORDS]) == 0
    page.unlink()
    (state / "checkpoints").mkdir()
    half = f"weights-{'0' * 32}.safetensors"
    for left in (half, ".report.html.a.part", "checkpoints/.00000001.safetensors.a.part"):
        (state / left).touch()  # by a process that was killed at the end
    head = (state / HEAD).read_bytes()
    capsys.readouterr()
    for repeated in (words, [*words, *WORDS, "--name", "another"]):
        assert main(repeated) == 0
        assert "task 'march' is learned already" in capsys.readouterr().err
        assert (state / HEAD).read_bytes() == head and page.is_file()
        assert len(list(state.iterdir())) == 3
    write_class(tmp_path / "march" / "labeled", "red", 2, first=50)
    assert main(words) == 2
    assert "was learned from other images" in capsys.readouterr().err
    assert (state / HEAD).read_bytes() == head
    assert main([*words, "--again"]) == 0
    assert [one["name"] for one in read_state(state)["history"]] == ["march", "march"]


@pytest.mark.parametrize("checkpoint_seconds", [ALWAYS, 0.0])
def test_a_full_disk_leaves_the_state_as_it_was(
    checkpoint_seconds: float, world: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content_of(state)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DiskError, match="no space left on the disk"):
            learn(state, labeled=world / "april", checkpoint_seconds=checkpoint_seconds)
    assert content_of(state) == before
    assert learn(state, labeled=world / "april")["number"] == 2


def test_bad_input_leaves_no_trace(world: Path, tmp_path: Path) -> None:
    state = tmp_path / "fish"
    outer = write_classes(tmp_path / "may" / "labeled", BOAT, count=1).parent
    overlapping = {"labeled": world / "march", "test": world / "april"}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"labeled": world / "nowhere"}, "expected a folder with one folder for each class"),
        ({"labeled": world / "camera"}, "one folder of images for each class, found none"),
        ({"labeled": outer}, "did you mean .*may/labeled"),
        ({"labeled": world / "march", "unlabeled": [world / "nowhere"]}, "found nothing"),
        ({"labeled": world / "march", "test": world / "nowhere"}, "expected a folder"),
        ({"labeled": world / "march", "test": world / "march"}, "apart from the labeled"),
        ({**overlapping, "unlabeled": [world / "camera", world]}, "apart from the unlabeled"),
        ({**overlapping, "unlabeled": [world / "april" / "trout"]}, "apart from the unlabeled"),
        ({**overlapping, "unlabeled": [world / "ap*" / "**"]}, "apart from the unlabeled"),
        ({"labeled": world / "march", "held_out": 1.0}, "held_out must be"),
        ({"labeled": world / "march", "settings": {"method": "offline"}}, "keeps none"),
    ]
    for given, sentence in bad:
        with pytest.raises((LearnerError, SourceError, ValueError), match=sentence):
            learn(state, **{"settings": SETTINGS, **given})
        assert not state.exists()
    other = write_images(tmp_path / "pictures", images_of(SHARK, count=1))
    with pytest.raises(LearnerError, match="expected a learner or an empty folder"):
        learn(other, labeled=world / "march", settings=SETTINGS)
    with pytest.raises(LearnerError, match="found a file"):
        learn(other / "0.png", labeled=world / "march", settings=SETTINGS)
    assert [path.name for path in other.iterdir()] == ["0.png"]
