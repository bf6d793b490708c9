"""Runs that survive: killed anywhere and continued, they end in the same result."""

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted_runs import DiesAfter, checkpoint_files, interrupted, said, session, truncate
from learner_folders import content_of
from safetensors.torch import save as to_safetensors
from small_runs import SOURCE, TESTS, six_classes, without_times

from distillmatch.errors import DiskError, ResultError, RunFolderError
from distillmatch.methods import method_names
from distillmatch.runs import read_result, run
from distillmatch.runs.checkpoints import Checkpoint, Checkpoints, decode
from distillmatch.runs.log import history, read_log
from distillmatch.runs.result import config_of


def forbid(patch: pytest.MonkeyPatch, *forbidden: Path, reason: int = errno.EACCES) -> None:
    """Let nobody open these files, not even the administrator."""
    inner = Path.open

    def guarded(self: Path, *given: Any, **named: Any) -> Any:
        if self in forbidden:
            raise OSError(reason, os.strerror(reason), str(self))
        return inner(self, *given, **named)

    patch.setattr(Path, "open", guarded)


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    said.clear()
    yield


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in method_names()),
    ("dm", {"coreset": 0, "recipe": "as-written"}),
    ("dm", {"weight_averaging": 0.8, "optimizer": "adamw", "schedule": "cosine"}),
    ("worldmatch", {"coreset": 0, "options": {"accept": "truth"}}),
    ("worldmatch", {"options": {"accept": "newness"}, "recipe": "as-written"}),
    ("base", {"momentum": 0.0, "strong_labels": True}),
    ("e2e", {"stored_share": 0.5, "batch": 4}),
    ("gd", {"coreset": 0}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_run_killed_in_every_epoch_ends_in_the_same_result(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Each session finishes one epoch and dies in the next, so every place is continued from."""
    config = interrupted(method=name, **{"epochs": 3, **options})
    never_killed = run(config, dataset=six_classes())
    sessions = 1
    while (result := session(config, tmp_path, epochs=2)) is None:
        sessions += 1
    epochs = sum(len(terms["loss"]) for t in result["tasks"] for terms in t["losses"].values())
    assert sessions >= epochs - 3
    assert without_times(result) == without_times(never_killed)
    assert without_times(read_result(tmp_path)) == without_times(never_killed)


def test_checkpoints_are_as_rare_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[tuple[int, int, int]] = []
    inner = Checkpoints.save

    def save(self: Checkpoints, checkpoint: Checkpoint) -> Path:
        at = checkpoint.values["engine"]
        places.append((at["task"], at["trainings"], at["epochs"]))
        # A run killed right after this write misses no line of the log.
        epochs = sum(len(terms["loss"]) for terms in at["losses"].values())
        noted = [entry["event"] for entry in history(read_log(self.folder.parent))]
        finished = checkpoint.values["results"]["tasks"]
        epochs += sum(len(terms["loss"]) for t in finished for terms in t["losses"].values())
        assert (noted.count("epoch"), noted.count("task")) == (epochs, len(finished))
        return inner(self, checkpoint)

    monkeypatch.setattr(Checkpoints, "save", save)
    ends = [(1, 0, 0), (2, 0, 0)]
    for every in (0.0, 3600.0):
        places.clear()
        session(interrupted(method="base"), tmp_path / str(every), checkpoint_seconds=every)
        assert places == ends, "after every task but the last"
    places.clear()
    session(interrupted(method="base"), tmp_path / "always")
    within = [(task, *at) for task in range(3) for at in ((0, 1), (0, 2), (0, 3), (0, 4), (1, 0))]
    assert places == sorted(ends + within)
    files = [e["file"] for e in read_log(tmp_path / "always") if e["event"] == "checkpoint"]
    assert files == [f"{number + 1:08d}.safetensors" for number in range(len(places))]


def test_two_checkpoints_are_kept_and_none_once_the_run_is_finished(tmp_path: Path) -> None:
    config = interrupted(method="base")
    session(config, tmp_path, epochs=7)
    assert [path.stem for path in checkpoint_files(tmp_path)] == ["00000007", "00000008"]
    half = (
        tmp_path / "checkpoints" / ".00000008.safetensors.abc.part",
        tmp_path / ".result.json.x.part",
    )
    for path in half:  # what a process left that was killed while it wrote
        path.write_bytes(b"half")
    assert session(config, tmp_path) is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "result.json"]


def flip_a_bit(content: bytes) -> bytes:
    return content[:-1000] + bytes([content[-1000] ^ 1]) + content[-999:]


def change_a_value(content: bytes) -> bytes:
    assert content.count(b'\\"work\\": ') == 1
    return content.replace(b'\\"work\\": ', b'\\"wark\\": ')


DAMAGES: list[Callable[[bytes], bytes]] = [
    lambda content: content[: len(content) // 2],
    flip_a_bit,
    change_a_value,
    lambda content: content.replace(b'"version":"1"', b'"version":"2"'),
    lambda content: b"",
    lambda content: random.Random(1).randbytes(5000),
    lambda content: to_safetensors({"weights": torch.ones(3)}),
]


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    config = interrupted(method="dr")
    assert session(config, tmp_path, epochs=5) is None
    for number, damage in enumerate(DAMAGES):
        _, last = checkpoint_files(tmp_path)
        last.write_bytes(damage(last.read_bytes()))
        said.clear()
        assert session(config, tmp_path, epochs=3) is None
        assert said[0].startswith(f"{last}: not a whole checkpoint ("), number
        assert said[0].endswith("; it is not used")
        assert said[1].startswith("continuing in task ")
        assert last not in checkpoint_files(tmp_path)
    result = session(config, tmp_path)
    assert result is not None
    assert without_times(result) == without_times(run(config, dataset=six_classes()))


def test_without_a_whole_checkpoint_a_run_starts_over_or_refuses(tmp_path: Path) -> None:
    config = interrupted(method="base")
    session(config, tmp_path, epochs=7)
    for path in checkpoint_files(tmp_path):
        truncate(path)
    said.clear()
    with pytest.raises(RunFolderError, match=r"there is no run to continue: .*not a whole"):
        session(config, tmp_path, resume="must")
    assert not said
    result = session(config, tmp_path)
    assert [sentence.endswith("; it is not used") for sentence in said] == [True, True]
    assert result is not None
    assert without_times(result) == without_times(run(config, dataset=six_classes()))


@pytest.mark.parametrize("room", [1, 2, 7, 12])
def test_a_full_disk_stops_the_run_with_the_last_good_state_intact(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = interrupted(method="e2e")
    assert session(config, tmp_path, epochs=3) is None
    fsync, before, left = os.fsync, content_of(tmp_path / "checkpoints"), [room]

    def sync_while_there_is_room(descriptor: int) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sync_while_there_is_room)
        with pytest.raises(DiskError, match=r"no space left on the disk of .* while writing"):
            session(config, tmp_path)
    assert not list(tmp_path.rglob("*.part"))
    assert len(checkpoint_files(tmp_path)) == 2
    assert all(decode(path) for path in checkpoint_files(tmp_path))
    assert (content_of(tmp_path / "checkpoints") == before) == (room == 1)
    result = session(config, tmp_path)
    assert result is not None
    assert without_times(result) == without_times(run(config, dataset=six_classes()))


def test_times_add_up_over_sessions(tmp_path: Path) -> None:
    config = interrupted(method="base")
    session(config, tmp_path, epochs=6)
    kept, _ = Checkpoints(tmp_path).load()
    assert kept is not None
    values = {**kept.values, "seconds": kept.values["seconds"] + 1000}
    values["engine"] = {**values["engine"], "seconds": {"classifier": 500.0}}
    Checkpoints(tmp_path).save(Checkpoint(values, kept.tensors))
    result = session(config, tmp_path)
    assert result is not None and 1000 < result["seconds"]["total"] < 1100
    assert 500 < result["tasks"][1]["seconds"]["classifier"] < 600
    assert 500 < result["seconds"]["classifier"] < 600


def test_progress_goes_on_where_it_was(tmp_path: Path) -> None:
    config, dataset = interrupted(method="gd"), six_classes()
    whole = DiesAfter(10**9)
    run(config, dataset=dataset, progress=whole)
    assert session(config, tmp_path, epochs=15) is None
    rest = DiesAfter(10**9)
    run(config, tmp_path, dataset=dataset, progress=rest)
    assert rest.done == whole.done and rest.total == whole.total


@pytest.mark.parametrize(("resume", "reason"), [("auto", errno.EACCES), ("must", errno.EIO)])
def test_a_checkpoint_that_cannot_be_read_is_refused_and_kept(
    resume: str, reason: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = interrupted(method="base")
    assert session(config, tmp_path, epochs=7) is None
    files, before = checkpoint_files(tmp_path), content_of(tmp_path / "checkpoints")
    said.clear()
    with monkeypatch.context() as patch:
        forbid(patch, *files, reason=reason)
        with pytest.raises(DiskError) as error:
            session(config, tmp_path, resume=resume)
    assert str(error.value) == f"{files[-1]}: {os.strerror(reason)} while reading a checkpoint"
    assert not said and content_of(tmp_path / "checkpoints") == before
    result = session(config, tmp_path)
    assert result is not None and said[0].startswith("continuing in task 2 of 3")
    assert without_times(result) == without_times(run(config, dataset=six_classes()))


@pytest.mark.parametrize(
    "text", ['{"mine": 1}', '{"format": "distillmatch result", "version": 3}', '{"format": "di', ""]
)
def test_another_result_or_one_of_a_later_version_is_left_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(ResultError, match=r"expected (a result of a run|version .* found 3)"):
        session(interrupted(method="base"), tmp_path)
    assert (tmp_path / "result.json").read_text() == text


FIXTURE = TESTS / "fixtures" / "run_in_task_2"
"""A run of DM by version 0.2.0 that was killed in its second task: its checkpoint and result."""
CONFIG = interrupted(source=SOURCE, network="small_runs:smallest_network")


def test_a_run_of_version_0_2_is_resumed_from_its_checkpoint(tmp_path: Path) -> None:
    shutil.copytree(FIXTURE, tmp_path / "run")
    before = read_result(FIXTURE)
    assert config_of(before) == CONFIG and not before["complete"]
    result = session(CONFIG, tmp_path / "run", resume="must")
    assert said[0].startswith("continuing in task 2 of 3 after epoch 2 of training 1")
    assert result is not None and result["complete"]
    assert result["tasks"][0] == before["tasks"][0] and result["R"][0][0] == before["R"][0][0]
    for task, fresh in zip(result["tasks"], run(CONFIG)["tasks"], strict=True):
        assert task["losses"].keys() == fresh["losses"].keys()
