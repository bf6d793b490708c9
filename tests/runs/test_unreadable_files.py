"""Checkpoints that cannot be read, and folders whose names are not UTF-8."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from interrupted_runs import TINY, checkpoint_files, interrupted, said, session, truncate
from odd_files import contents, forbid
from small_runs import SOURCE, as_words, six_classes, without_times

from distillmatch.cli import main
from distillmatch.errors import DiskError
from distillmatch.runs import run


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    said.clear()
    yield


@pytest.mark.parametrize("reason", [errno.EACCES, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("resume", ["auto", "must"])
def test_a_checkpoint_that_cannot_be_read_is_refused_and_kept(
    resume: str, reason: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = interrupted(method="base")
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
    config = interrupted(method="base")
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
    config = interrupted(method="base", source=SOURCE)
    assert session(config, tmp_path, epochs=7) is None
    _, last = checkpoint_files(tmp_path)
    last.unlink()
    last.mkdir()
    before = contents(tmp_path / "checkpoints")
    words = ["run", "--out", str(tmp_path), "--quiet"]
    words += as_words({**TINY, "source": config.source, "method": "base"})
    capsys.readouterr()
    assert main(words) == 2
    *_, sentence = capsys.readouterr().err.splitlines()
    assert sentence.startswith(f"distillmatch: error: {last}: Is a directory while reading")
    assert contents(tmp_path / "checkpoints") == before and last.is_dir()


def test_checkpoints_that_cannot_be_listed_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = interrupted(method="base")
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


def test_a_run_is_continued_in_a_folder_whose_name_is_not_utf8(odd_folder: Path) -> None:
    config = interrupted(method="base")
    assert session(config, odd_folder, epochs=7) is None
    said.clear()
    assert session(config, odd_folder, epochs=2) is None
    assert said[0].startswith("continuing in task 2 of 3")
    truncate(checkpoint_files(odd_folder)[-1])
    said.clear()
    result = session(config, odd_folder)
    assert "fold\N{REPLACEMENT CHARACTER}r" in said[0] and "not a whole checkpoint" in said[0]
    assert result is not None
    assert without_times(result) == without_times(run(config, dataset=six_classes()))
