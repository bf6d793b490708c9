"""Nothing runs from a file, and no task is learned twice."""

import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from learner_folders import SMALL as WORDS
from learner_folders import write_class
from learner_world import BOAT, GOLDFISH, SHARK, TROUT, images_of, small_learner, task

from distillmatch import ContinualLearner
from distillmatch.cli import main
from distillmatch.engine import NoProgress
from distillmatch.errors import DistillMatchError, LearnerError
from distillmatch.learner import learn, read_state
from distillmatch.learner.saved import HEAD
from distillmatch.runs.checkpoints import checksum


@pytest.fixture(name="state")
def state_fixture(tmp_path: Path) -> Path:
    small_learner(epochs=1).partial_fit(*task(SHARK, count=2)).save(tmp_path / "state")
    return tmp_path / "state"


def rename(state: Path, key: str, value: str) -> None:
    """Let a state name other code, with a checksum that is right."""
    record = json.loads((state / HEAD).read_text())
    record["learner"]["settings"][key] = value
    record["checksum"] = checksum(json.dumps(record["learner"], sort_keys=True), {})
    (state / HEAD).write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("network", "trap:network"),
        ("method", "trap:method"),
        ("network", "os:abort"),
        ("network", "builtins:breakpoint"),
        ("network", "site:execsitecustomize"),
    ],
)
def test_code_that_a_state_names_is_not_run(
    key: str, name: str, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("trap", "sitecustomize"):
        (tmp_path / f"{module}.py").write_text("import os\nos.mkdir('ran')\n")
    write_class(tmp_path / "next", "red", 2)
    rename(state, key, name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "sitecustomize", raising=False)
    before, path = sorted(tmp_path.iterdir()), list(sys.path)
    for words in (
        ["predict", "state", "next"],
        ["export", "state", "--torch", "x.pt2"],
        ["learn", "state", "--labeled", "next"],
        ["predict", "state", "next", "--allow-import", "trap:other"],
    ):
        assert main(words) == 2
    with pytest.raises(DistillMatchError, match=f"--allow-import {name}"):
        ContinualLearner.load(state)
    assert sorted(tmp_path.iterdir()) == before and sys.path == path


def test_only_the_allowed_name_is_imported(tmp_path: Path) -> None:
    learner = small_learner("learner_methods:Weighted", epochs=1).fit(*task(SHARK, count=2))
    learner.save(tmp_path)
    for allowed in ((), "learner_methods:Stubborn", ["learner_methods"]):
        with pytest.raises(DistillMatchError, match="a file does not decide what is imported"):
            ContinualLearner.load(tmp_path, allow_import=allowed)
    loaded = ContinualLearner.load(tmp_path, allow_import="learner_methods:Weighted")
    assert loaded.classes_.tolist() == learner.classes_.tolist()


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
    for left in (".report.html.a.part", "checkpoints/.00000001.safetensors.a.part"):
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_state_was_replaced_loses_and_repeats_nothing(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_class(tmp_path / "march", "red", 6)
    given: dict[str, Any] = {
        "labeled": tmp_path / "march",
        "settings": {"method": "base", "network": "wrn-10-1", "epochs": 1, "image_size": 8},
    }
    write = ContinualLearner.write

    def killed(learner: ContinualLearner, folder: Path) -> None:
        write(learner, folder)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(143)

    with monkeypatch.context() as patched:
        patched.setattr(ContinualLearner, "write", killed)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            learn(tmp_path / "state", **given)
    told: list[str] = []
    record = learn(tmp_path / "state", **given, tell=told.append)
    assert record["number"] == 1 and "is learned already" in told[-1]
    assert len(read_state(tmp_path / "state")["history"]) == 1


class Waits(NoProgress):
    """Holds a task until it may go on."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def advance(self, done: float, doing: str) -> None:
        self.begun.set()
        assert self.may_end.wait(300)


def test_a_second_task_from_another_thread_is_refused() -> None:
    learner, waits = small_learner(epochs=1), Waits()
    first = threading.Thread(
        target=lambda: learner.partial_fit(*task(GOLDFISH, BOAT, count=3), progress=waits)
    )
    first.start()
    try:
        assert waits.begun.wait(300)
        with pytest.raises(LearnerError, match="learning a task in another thread"):
            learner.partial_fit(*task(TROUT, count=3))
    finally:
        waits.may_end.set()
        first.join()
    learner.partial_fit(images_of(TROUT, count=3), ["trout"] * 3)
    assert len(learner.history_) == 2
