"""Checkpoints are written beside the training: it waits for none, and none is lost by that."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted_runs import DiesAfter, checkpoint_files, interrupted, said, session
from small_runs import six_classes, without_times

from distillmatch.config import RunConfig
from distillmatch.runs import Interrupted, checkpoints, read_result, run
from distillmatch.runs.checkpoints import WRITER as THREAD
from distillmatch.runs.checkpoints import Checkpoint, Checkpoints, CheckpointWriter, decode
from distillmatch.runs.folder import RunFolder
from distillmatch.runs.interruption import StopRequest, end_process
from distillmatch.runs.log import history, read_log

Place = tuple[int, int, int]
Before = Callable[[Checkpoint], None]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    said.clear()
    yield
    assert not writing()


def writing() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def place_of(checkpoint: Checkpoint) -> Place:
    at = checkpoint.values["engine"]
    return at["task"], at["trainings"], at["epochs"]


def newest(out: Path) -> Checkpoint:
    found, problems = Checkpoints(out).load()
    assert found is not None and not problems
    return found


def before_each_write(patch: pytest.MonkeyPatch, before: Before) -> None:
    inner = Checkpoints.save

    def save(self: Checkpoints, checkpoint: Checkpoint) -> Path:
        before(checkpoint)
        return inner(self, checkpoint)

    patch.setattr(Checkpoints, "save", save)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.005)


class Counting(DiesAfter):
    """Counts the epochs that are finished, and does something after each."""

    def __init__(self, after: Callable[[int], None] = lambda finished: None) -> None:
        super().__init__(10**9)
        self.finished = 0
        self.after = after

    def advance(self, done: float, doing: str) -> None:
        self.finished += 1
        self.after(self.finished)


def counted(config: RunConfig, out: Path, progress: Counting, **options: Any) -> dict[str, Any]:
    given = {"checkpoint_seconds": 0.0, "tell": said.append, **options}
    return run(config, out, dataset=six_classes(), progress=progress, **given)


def test_a_slow_write_delays_no_epoch_and_keeps_the_state_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write after the first task begins when the second is learned; nothing else ends it."""
    config, slow, quick = interrupted(method="base"), list[Checkpoint](), list[Checkpoint]()

    def wait_for_the_second_task(checkpoint: Checkpoint) -> None:
        slow.append(checkpoint)
        if place_of(checkpoint) == (1, 0, 0):
            wait_until(lambda: len(read_result(tmp_path)["tasks"]) == 2, "the second task")

    with monkeypatch.context() as patch:
        before_each_write(patch, wait_for_the_second_task)
        result = counted(config, tmp_path, Counting())
    with monkeypatch.context() as patch:
        before_each_write(patch, quick.append)
        expected = counted(config, tmp_path / "other", Counting())
    assert without_times(result) == without_times(expected)
    for one, other in zip(slow, quick, strict=True):
        assert place_of(one) == place_of(other)
        assert len(one.values["results"]["R"]) == len(one.values["results"]["tasks"])
        for name, tensor in other.tensors.items():
            assert torch.equal(tensor, one.tensors[name]), name


def test_writes_come_one_at_a_time_in_order_and_never_before_their_epochs_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run killed right after a write, whenever that is, misses no line and doubles none."""
    places: list[Place] = []
    at_once: list[int] = []

    def look(checkpoint: Checkpoint) -> None:
        at_once.append(len(writing()))
        time.sleep(0.01 * (len(places) % 3))
        places.append(place_of(checkpoint))
        under_way = sum(len(v["loss"]) for v in checkpoint.values["engine"]["losses"].values())
        finished = checkpoint.values["results"]["tasks"]
        epochs = sum(len(v["loss"]) for task in finished for v in task["losses"].values())
        noted = [entry["event"] for entry in history(read_log(tmp_path))]
        assert noted.count("epoch") >= epochs + under_way and noted.count("task") >= len(finished)

    before_each_write(monkeypatch, look)
    assert session(interrupted(method="gd", epochs=2), tmp_path) is not None
    assert places == sorted(places) and len(set(places)) == len(places) > 9
    assert set(at_once) == {1}
    log = read_log(tmp_path)
    files = [entry["file"] for entry in log if entry["event"] == "checkpoint"]
    assert files == [f"{number + 1:08d}.safetensors" for number in range(len(places))]
    assert log[-1]["event"] == "finished"


def test_a_stop_during_a_slow_write_leaves_the_newest_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, stop = interrupted(method="base"), StopRequest()

    def write_slowly(checkpoint: Checkpoint) -> None:
        wait_until(lambda: stop.asked, "the stop")
        time.sleep(0.1)

    def ask_in_the_sixth(finished: int) -> None:
        if finished == 6:
            stop.ask("a test")

    with monkeypatch.context() as patch:
        before_each_write(patch, write_slowly)
        with pytest.raises(Interrupted, match=r"task 2 of 3 after epoch 2 .* same command"):
            counted(config, tmp_path, Counting(ask_in_the_sixth), stop=stop)
        assert not writing()
    assert place_of(newest(tmp_path)) == (1, 0, 2)
    assert [path.stem for path in checkpoint_files(tmp_path)] == ["00000001", "00000002"]
    result = session(config, tmp_path, resume="must")
    assert result is not None
    assert without_times(result) == without_times(run(config, dataset=six_classes()))


def test_a_stop_that_comes_while_a_run_looks_around_waits_for_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, looks, inner = StopRequest(), list[int](), CheckpointWriter.look

    def look(writer: CheckpointWriter) -> None:
        inner(writer)
        looks.append(1)
        if len(looks) == 6:
            stop.ask("a test")

    monkeypatch.setattr(CheckpointWriter, "look", look)
    with pytest.raises(Interrupted, match=r"task 2 of 3 after epoch 2 "):
        session(interrupted(method="base"), tmp_path, checkpoint_seconds=0.0, stop=stop)
    assert place_of(newest(tmp_path)) == (1, 0, 2)


def test_a_second_signal_waits_for_no_disk_and_its_write_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next session in the folder, of this process, finds its checkpoints as it wrote them."""
    comes_back, encode, ended = threading.Event(), checkpoints.encode, list[int]()

    def hanging(checkpoint: Checkpoint) -> bytes:
        if checkpoint.values["session"] == 1:
            wait_until(comes_back.is_set, "the disk")
        return encode(checkpoint)

    monkeypatch.setattr(checkpoints, "encode", hanging)
    monkeypatch.setattr(os, "_exit", ended.append)
    second = Interrupted("stopped at once", 2)
    with (
        RunFolder(tmp_path, said.append) as folder,
        pytest.raises(Interrupted),
        CheckpointWriter(folder.checkpoints, folder.log) as writer,
    ):
        writer.begin(Checkpoint({"session": 1}, {}), "task 1")
        raise second
    (thread,) = writing()
    assert thread.daemon
    with pytest.raises(SystemExit):  # which would be too late, did `os._exit` return
        end_process(second)
    assert ended == [130]
    with RunFolder(tmp_path, said.append) as folder:
        for number in (1, 2, 3):
            folder.checkpoints.save(Checkpoint({"session": 2, "number": number}, {}))
        kept = sorted((tmp_path / "checkpoints").iterdir())
        comes_back.set()
        thread.join()
        assert sorted((tmp_path / "checkpoints").iterdir()) == kept
    assert decode(kept[-1]).values == {"session": 2, "number": 3}
