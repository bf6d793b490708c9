"""Runs that survive: killed anywhere and continued, they end in the same result."""

import errno
import gc
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_dataset
from interrupted_runs import (
    ALWAYS,
    TINY,
    DiesAfter,
    checkpoint_files,
    interrupted,
    said,
    session,
    truncate,
)
from safetensors.torch import save_file
from small_runs import SOURCE, as_words, six_classes, without_times
from torch import Tensor

from distillmatch.cli import main
from distillmatch.errors import DiskError, RunFolderError
from distillmatch.methods import method_names
from distillmatch.runs import read_result, run
from distillmatch.runs.checkpoints import WRITER as THREAD
from distillmatch.runs.checkpoints import Checkpoint, Checkpoints, decode


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    said.clear()
    yield


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in method_names()),
    ("dm", {"coreset": 0}),
    ("dm", {"recipe": "as-written"}),
    ("dm", {"weight_averaging": 0.8, "optimizer": "adamw", "schedule": "cosine"}),
    ("worldmatch", {"coreset": 0, "options": {"accept": "truth"}}),
    ("worldmatch", {"options": {"accept": "newness"}, "recipe": "as-written"}),
    ("base", {"momentum": 0.0, "schedule": "cosine"}),
    ("base", {"optimizer": "adamw", "strong_labels": True}),
    ("e2e", {"stored_share": 0.5, "batch": 4}),
    ("gd", {"coreset": 0}),
    ("gd", {"stored_share": 0.25, "optimizer": "adamw", "weight_averaging": 0.9}),
    ("dr", {"recipe": "as-written"}),
    ("dm", {"repetition": 0.6, "distractors": 3}),
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
    assert (
        sessions >= sum(len(v["loss"]) for t in result["tasks"] for v in t["losses"].values()) - 3
    )
    assert without_times(result) == without_times(never_killed)
    assert without_times(read_result(tmp_path)) == without_times(never_killed)


def test_checkpoints_are_as_rare_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[tuple[int, int, int]] = []
    inner = Checkpoints.save

    def save(self: Checkpoints, checkpoint: Checkpoint) -> Path:
        at = checkpoint.values["engine"]
        places.append((at["task"], at["trainings"], at["epochs"]))
        return inner(self, checkpoint)

    monkeypatch.setattr(Checkpoints, "save", save)
    for every in (0.0, 3600.0):
        places.clear()
        session(interrupted(method="base"), tmp_path / str(every), checkpoint_seconds=every)
        assert places == [(1, 0, 0), (2, 0, 0)], "after every task but the last"
    places.clear()
    session(interrupted(method="base"), tmp_path / "always")
    of_a_task = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 0)]
    at_ends = {1: [(1, 0, 0)], 2: [(2, 0, 0)]}
    expected = [p for t in range(3) for p in [*at_ends.get(t, []), *((t, *q) for q in of_a_task)]]
    assert places == expected


def test_two_checkpoints_are_kept_and_none_once_the_run_is_finished(tmp_path: Path) -> None:
    config = interrupted(method="base")
    session(config, tmp_path, epochs=7)
    assert [path.stem for path in checkpoint_files(tmp_path)] == ["00000007", "00000008"]
    assert session(config, tmp_path) is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "result.json"]
    log = (tmp_path / "log.jsonl").read_text()
    assert "begun" in log and "continuing in task 2 of 3" in log and "finished" in log


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)


def change_a_value(path: Path) -> None:
    content = path.read_bytes()
    assert content.count(b'\\"work\\": ') == 1
    path.write_bytes(content.replace(b'\\"work\\": ', b'\\"wark\\": '))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def scribble(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(5000))


def replace_by_foreign(path: Path) -> None:
    save_file({"weights": torch.ones(3)}, path)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    config = interrupted(method="dr")
    assert session(config, tmp_path, epochs=5) is None
    for damage in (truncate, flip_a_bit, change_a_value, empty, scribble, replace_by_foreign):
        _, last = checkpoint_files(tmp_path)
        damage(last)
        said.clear()
        assert session(config, tmp_path, epochs=3) is None
        assert said[0].startswith(f"{last}: not a whole checkpoint ("), damage
        assert said[0].endswith("; the one before it is used")
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
    assert [sentence.endswith("the run starts over") for sentence in said] == [True, True]
    assert result is not None
    assert without_times(result) == without_times(run(config, dataset=six_classes()))


def test_what_a_killed_writer_leaves_is_swept_away(tmp_path: Path) -> None:
    config = interrupted(method="base")
    session(config, tmp_path, epochs=7)
    left = [
        tmp_path / "checkpoints" / ".00000008.safetensors.abc.part",
        tmp_path / ".result.json.abc.part",
    ]
    for path in left:
        path.write_bytes(b"half")
    session(config, tmp_path, epochs=1)
    assert not any(path.exists() for path in left)


def test_a_full_disk_stops_the_run_with_the_last_good_state_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = interrupted(method="e2e", source=SOURCE)
    inner, room = os.fsync, [0]

    def fsync(descriptor: int) -> None:
        room[0] -= 1
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        inner(descriptor)

    def stops_with(room_for: int) -> None:
        room[0] = room_for
        before = {path: path.read_bytes() for path in checkpoint_files(out)}
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            with pytest.raises(DiskError, match="no space left on the disk"):
                session(config, out)
        assert not list(out.rglob("*.part"))
        after = {path: path.read_bytes() for path in checkpoint_files(out)}
        assert len(after) == 2 and all(decode(path) for path in after)
        assert (after == before) == (room_for == 1)

    out = tmp_path / "run"
    session(config, out, epochs=3)
    for room_for in (1, 2, 7, 12):
        stops_with(room_for)
    words = ["run", "--out", str(out), "--quiet", "--checkpoint-seconds", "1e-9"]
    words += as_words({**TINY, "source": config.source, "method": "e2e"})
    with monkeypatch.context() as patch:
        room[0] = 1
        patch.setattr(os, "fsync", fsync)
        capsys.readouterr()
        assert main(words) == 2
    *_, sentence = capsys.readouterr().err.splitlines()
    assert sentence.startswith("distillmatch: error: no space left on the disk of ")
    assert "while writing" in sentence
    assert main(words) == 0
    never_killed = run(config, dataset=six_classes())
    assert without_times(read_result(out)) == without_times(never_killed)


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


def test_memory_stays_flat_over_many_tasks(tmp_path: Path) -> None:
    tasks = 10
    dataset = make_dataset(classes=tasks, per_class=5, test_per_class=1, parents=None, noise=True)
    config = interrupted(epochs=1, tasks=tasks, labels_per_class=2, unlabeled_per_task=3)
    counts: list[int] = []
    held: list[int] = []

    class Watch(DiesAfter):
        def advance(self, done: float, doing: str) -> None:
            task = int(doing.removeprefix("task ").partition("/")[0])
            if doing.endswith("classifier") and task > 4:
                for thread in threading.enumerate():
                    if thread.name == THREAD:
                        thread.join()
                gc.collect()
                kinds = (Tensor, torch.nn.Parameter)  # other tests may have left sparse ones
                tensors = [o for o in gc.get_objects() if type(o) in kinds and not o.is_sparse]
                counts.append(len(tensors))
                held.append(sum(tensor.nbytes for tensor in tensors))

    result = run(config, tmp_path, dataset=dataset, progress=Watch(0), checkpoint_seconds=ALWAYS)
    assert result["complete"] and len(counts) == tasks - 4
    assert max(counts) - min(counts) <= 2
    assert max(held) - min(held) < 50_000
