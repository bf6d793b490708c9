"""Checkpoints and learners that cannot be read, and folders whose names are not UTF-8."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from learner_world import CLOWNFISH, SHARK, SMALL, names_of, small_learner, task, write_classes
from test_checkpoints import (
    TINY,
    checkpoint_files,
    said,
    session,
    six_classes,
    tiny,
    truncate,
    without_times,
)
from test_learner_state import CrashError, DiesIn, contents

from distillmatch import ContinualLearner
from distillmatch.cli import main
from distillmatch.errors import DiskError, LearnerError
from distillmatch.learner import learn
from distillmatch.run import run

ALWAYS = 1e-9
"""Seconds between checkpoints that are always over."""


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    said.clear()
    yield


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder whose name is not UTF-8, where the system has such names."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/fold\xe9r"))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    return folder


def forbid(patch: pytest.MonkeyPatch, *forbidden: Path, reason: int = errno.EACCES) -> None:
    """Let nobody open these files, not even the administrator."""
    inner = Path.open

    def guarded(self: Path, *given: Any, **named: Any) -> Any:
        if self in forbidden:
            raise OSError(reason, os.strerror(reason), str(self))
        return inner(self, *given, **named)

    patch.setattr(Path, "open", guarded)


@pytest.mark.parametrize("reason", [errno.EACCES, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("resume", ["auto", "must"])
def test_a_checkpoint_that_cannot_be_read_is_refused_and_kept(
    resume: str, reason: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(method="base")
    assert session(config, tmp_path, epochs=7) is None
    files = checkpoint_files(tmp_path)
    before = contents(tmp_path / "checkpoints")
    said.clear()
    with monkeypatch.context() as patch:
        forbid(patch, *files, reason=reason)
        with pytest.raises(DiskError) as error:
            session(config, tmp_path, resume=resume)
    sentence = f"{files[-1]}: {os.strerror(reason)} while reading a checkpoint"
    assert str(error.value) == sentence
    assert not said
    assert contents(tmp_path / "checkpoints") == before
    result = session(config, tmp_path)
    assert result is not None and said[0].startswith("continuing in task 2 of 3")
    assert without_times(result) == without_times(run(config, dataset=six_classes()))


def test_an_older_checkpoint_that_cannot_be_read_is_no_reason_to_start_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(method="base")
    assert session(config, tmp_path, epochs=7) is None
    older, newer = checkpoint_files(tmp_path)
    truncate(newer)
    before = contents(tmp_path / "checkpoints")
    with monkeypatch.context() as patch:
        forbid(patch, older)
        with pytest.raises(DiskError, match=f"{older.name}: Permission denied"):
            session(config, tmp_path)
    assert contents(tmp_path / "checkpoints") == before


def test_a_folder_in_the_place_of_a_checkpoint_ends_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny(method="base", source="test_checkpoints:six_classes")
    assert session(config, tmp_path, epochs=7) is None
    _, last = checkpoint_files(tmp_path)
    last.unlink()
    last.mkdir()
    before = contents(tmp_path / "checkpoints")
    words = ["run", "--out", str(tmp_path), "--quiet"]
    for key, value in {**TINY, "source": config.source, "method": "base"}.items():
        words += [f"--{key.replace('_', '-')}", str(value)]
    capsys.readouterr()
    assert main(words) == 2
    *_, sentence = capsys.readouterr().err.splitlines()
    assert sentence.startswith(f"distillmatch: error: {last}: Is a directory while reading")
    assert contents(tmp_path / "checkpoints") == before and last.is_dir()


def test_checkpoints_that_cannot_be_listed_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(method="base")
    assert session(config, tmp_path, epochs=7) is None
    before = contents(tmp_path / "checkpoints")
    inner = Path.iterdir

    def guarded(self: Path) -> Iterator[Path]:
        if self == tmp_path / "checkpoints":
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return inner(self)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", guarded)
        with pytest.raises(DiskError, match="Permission denied while looking for checkpoints"):
            session(config, tmp_path)
    assert contents(tmp_path / "checkpoints") == before


def test_a_run_is_continued_in_a_folder_whose_name_is_not_utf8(odd: Path) -> None:
    config = tiny(method="base")
    assert session(config, odd, epochs=7) is None
    said.clear()
    assert session(config, odd, epochs=2) is None
    assert said[0].startswith("continuing in task 2 of 3")
    truncate(checkpoint_files(odd)[-1])
    said.clear()
    result = session(config, odd)
    assert "fold\N{REPLACEMENT CHARACTER}r" in said[0] and "not a whole checkpoint" in said[0]
    assert result is not None
    assert without_times(result) == without_times(run(config, dataset=six_classes()))


def test_a_learner_lives_in_a_folder_whose_name_is_not_utf8(odd: Path, tmp_path: Path) -> None:
    march = write_classes(tmp_path / "march", CLOWNFISH, count=6)
    april = write_classes(tmp_path / "april", SHARK, count=6)
    settings = {**SMALL, "method": "e2e"}
    learn(odd, labeled=march, settings=settings)
    assert ContinualLearner.load(odd).classes_.tolist() == names_of(CLOWNFISH)
    with pytest.raises(CrashError):
        learn(odd, labeled=april, progress=DiesIn(1), checkpoint_seconds=ALWAYS)
    told: list[str] = []
    assert learn(odd, labeled=april, tell=told.append)["number"] == 2
    assert any("continuing the unfinished task" in sentence for sentence in told)
    assert ContinualLearner.load(odd).classes_.tolist() == names_of(CLOWNFISH, SHARK)


def test_an_unfinished_task_that_cannot_be_read_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    march = write_classes(tmp_path / "march", CLOWNFISH, count=6)
    state, settings = tmp_path / "fish", {**SMALL, "method": "e2e"}
    given: dict[str, Any] = {"labeled": march, "settings": settings}
    with pytest.raises(CrashError):
        learn(state, **given, progress=DiesIn(1), checkpoint_seconds=ALWAYS)
    before = contents(state)
    with monkeypatch.context() as patch:
        forbid(patch, *checkpoint_files(state))
        with pytest.raises(DiskError, match="Permission denied while reading a checkpoint"):
            learn(state, **given)
    assert contents(state) == before
    told: list[str] = []
    learn(state, **given, tell=told.append)
    assert any("continuing the unfinished task" in sentence for sentence in told)


def test_weights_that_cannot_be_read_are_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_learner(epochs=1).partial_fit(*task(SHARK, count=2)).save(tmp_path)
    [weights] = tmp_path.glob("weights-*")
    with monkeypatch.context() as patch:
        forbid(patch, weights)
        with pytest.raises(LearnerError) as error:
            ContinualLearner.load(tmp_path)
    assert str(error.value) == f"{weights}: Permission denied while reading the learner"
    weights.unlink()
    weights.mkdir()
    with pytest.raises(LearnerError) as error:
        ContinualLearner.load(tmp_path)
    assert str(error.value) == f"{weights}: Is a directory while reading the learner"
