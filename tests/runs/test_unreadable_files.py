"""Checkpoints that cannot be read, and folders whose names are not UTF-8."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted_runs import checkpoint_files, interrupted, said, session, truncate
from odd_files import contents, forbid
from small_runs import six_classes, without_times
from torch import Tensor

from distillmatch.errors import DiskError, DistillMatchError, ResultError
from distillmatch.runs import run
from distillmatch.runs.checkpoints import Checkpoint, decode, encode


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    said.clear()
    yield


@pytest.mark.parametrize(("resume", "reason"), [("auto", errno.EACCES), ("must", errno.EIO)])
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


def test_a_folder_in_the_place_of_a_checkpoint_is_refused_and_kept(tmp_path: Path) -> None:
    config = interrupted(method="base")
    assert session(config, tmp_path, epochs=7) is None
    _, last = checkpoint_files(tmp_path)
    last.unlink()
    last.mkdir()
    with pytest.raises(DiskError, match=r"00000008.safetensors: Is a directory while reading"):
        session(config, tmp_path)
    assert last.is_dir() and len(checkpoint_files(tmp_path)) == 2


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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("run.lock", "expected a file, found a pipe or a device while locking the folder"),
        ("checkpoints/00000001.safetensors", "a pipe or a device while reading a checkpoint"),
        ("log.jsonl", None),
        ("result.json", None),
        ("stages/01/checkpoints/00000001.safetensors", "a pipe or a device while reading a check"),
    ],
)
def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(
    name: str, refusal: str | None, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / name)
    config = interrupted(method="base", epochs=1)
    if refusal is None:
        assert session(config, tmp_path) is not None
    else:
        with pytest.raises(DiskError, match=refusal):
            session(config, tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0" * 50, b'{"format": "distillmatch', b"[" * 99999])
def test_a_damaged_result_is_passed_over_as_a_damaged_checkpoint_is(
    content: bytes, tmp_path: Path
) -> None:
    config = interrupted(method="base")
    assert session(config, tmp_path, epochs=7) is None
    (tmp_path / "result.json").write_bytes(content)
    said.clear()
    result = session(config, tmp_path)
    assert said[0].startswith(f"{tmp_path / 'result.json'}: expected a result")
    assert said[0].endswith("; it is passed over") and said[1].startswith("continuing in task 2")
    assert result is not None
    assert without_times(result) == without_times(run(config, dataset=six_classes()))


@pytest.mark.parametrize("text", ['{"mine": 1}', '{"format": "distillmatch result", "version": 3}'])
def test_another_result_or_one_of_a_later_version_is_left_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(ResultError, match=r"expected (a result of a run|version .* found 3)"):
        session(interrupted(method="base"), tmp_path)
    assert (tmp_path / "result.json").read_text() == text


def without(*keys: str | int) -> Callable[[Checkpoint], None]:
    def change(checkpoint: Checkpoint) -> None:
        values: Any = checkpoint.values
        for key in keys[:-1]:
            values = values[key]
        del values[keys[-1]]

    return change


def with_tensor(name: str, tensor: Tensor | None) -> Callable[[Checkpoint], None]:
    def change(checkpoint: Checkpoint) -> None:
        assert name in checkpoint.tensors
        del checkpoint.tensors[name]
        if tensor is not None:
            checkpoint.tensors[name] = tensor

    return change


@pytest.mark.parametrize(
    "change",
    [
        without("config"),
        without("engine", "epochs"),
        without("engine", "values", "threshold"),
        without("results", "P", 0),
        without("engine", "copies", "past"),
        with_tensor("optimizer/3", None),
        with_tensor("optimizer/3", torch.zeros(7, 3)),
        with_tensor("coreset", torch.zeros(1)),
        with_tensor("network/classifier/backbone.blocks.2.shortcut.weight", torch.zeros(7)),
    ],
)
def test_a_checkpoint_that_lacks_something_ends_in_a_sentence(
    change: Callable[[Checkpoint], None], tmp_path: Path
) -> None:
    """Its checksum is right, as after a mistake in a program that writes them."""
    assert session(interrupted(epochs=3), tmp_path, epochs=6) is None
    older, newest = checkpoint_files(tmp_path)
    older.unlink()
    checkpoint = decode(newest)
    change(checkpoint)
    newest.write_bytes(encode(checkpoint))
    with pytest.raises(DistillMatchError) as refusal:
        session(interrupted(epochs=3), tmp_path, resume="must")
    assert "\n" not in str(refusal.value)
