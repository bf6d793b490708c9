"""The folder of a run: whose it is, what it records, that it is run once; and saved streams."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import make_dataset
from interrupted_runs import interrupted, said, session
from small_runs import six_classes, without_times

from distillmatch.cli import main
from distillmatch.config import LOCATION_KEYS, RunConfig
from distillmatch.errors import ConfigError, RunFolderError, StreamError
from distillmatch.methods import with_options
from distillmatch.runs import bound_of, read_result, run
from distillmatch.runs import session as session_module
from distillmatch.runs.lock import FolderLock, is_held
from distillmatch.streams import build_stream


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    said.clear()
    yield


def test_a_finished_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = interrupted(method="base")
    first = session(config, tmp_path)
    content = (tmp_path / "result.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(session_module, "Engine", None)  # so that it cannot be run again
        for resume in ("auto", "must"):
            assert session(config, tmp_path, resume=resume) == first
    assert "finished: its result was read, nothing was run" in said[0]
    assert (tmp_path / "result.json").read_bytes() == content
    again = session(config, tmp_path, resume="no")
    assert again is not None and first is not None and again["seconds"] != first["seconds"]
    assert without_times(again) == without_times(first)


def test_a_bound_can_be_given_to_a_finished_run(tmp_path: Path) -> None:
    bound = bound_of(run(interrupted(method="offline", epochs=1), dataset=six_classes()))
    config = interrupted(method="base", epochs=1)
    at_once = run(config, dataset=six_classes(), bound=bound)
    session(config, tmp_path)
    later = session(config, tmp_path, bound=bound)
    assert later is not None and later["metrics"] == at_once["metrics"]
    assert later["metrics"]["omega"] is not None
    assert read_result(tmp_path) == later


@pytest.mark.parametrize("finished", [False, True])
def test_another_configuration_in_the_same_folder_is_refused(
    finished: bool, tmp_path: Path
) -> None:
    session(interrupted(method="base"), tmp_path, epochs=10**9 if finished else 3)
    other = interrupted(method="base", epochs=5, seed=2)
    with pytest.raises(RunFolderError) as refused:
        session(other, tmp_path)
    for part in ("epochs is 4 there and 5 here", "seed is 1 there and 2 here", "resume 'no'"):
        assert part in str(refused.value)
    assert "batch" not in str(refused.value)
    data = make_dataset(classes=6, per_class=11, parents=3, noise=True)
    with pytest.raises(RunFolderError, match="a run on other data"):
        session(interrupted(method="base"), tmp_path, dataset=data)
    result = session(other, tmp_path, resume="no")
    assert result is not None and result["config"]["epochs"] == 5


def test_where_files_lie_is_neither_recorded_nor_compared(tmp_path: Path) -> None:
    config = interrupted(method="base", data_dir=tmp_path / "here", cache_dir=tmp_path / "there")
    assert session(config, tmp_path / "run", epochs=6) is None
    result = session(interrupted(method="base"), tmp_path / "run")
    assert result is not None and not set(LOCATION_KEYS) & set(result["config"])
    assert str(tmp_path) not in json.dumps(result)
    assert RunConfig(**result["config"]) == with_options(interrupted(method="base"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"resume": "must"}, "there is no run to continue"),
        ({"resume": "must", "out": None}, "needs a folder"),
        ({"resume": "maybe"}, "resume must be one of no, auto, must, not 'maybe'"),
        ({"at_once": 0}, "at_once must be at least 1, not 0"),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds must be at least 0, not nan"),
    ],
)
def test_a_run_that_cannot_be_continued_as_asked_is_refused(
    options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, RunFolderError), match=sentence):
        run(interrupted(), **{"out": tmp_path, "dataset": six_classes(), **options})


@pytest.mark.parametrize("is_there", [False, True])
def test_a_run_that_cannot_begin_leaves_nothing_behind(is_there: bool, tmp_path: Path) -> None:
    if is_there:
        (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="depth must be"):
        session(interrupted(network="wrn-11-1"), tmp_path / "run")
    assert (tmp_path / "run").exists() == is_there
    assert not list(tmp_path.glob("run/*"))


def test_who_only_looks_at_a_lock_keeps_nobody_from_taking_it(tmp_path: Path) -> None:
    """To see whether it is held one takes it, for a moment, beside a file that was left behind."""
    (tmp_path / "run.lock").write_text("123456\n")
    ended = threading.Event()
    with ThreadPoolExecutor() as pool:
        looks = pool.submit(lambda: [is_held(tmp_path) for _ in iter(ended.is_set, True)])
        try:
            for _ in range(300):
                FolderLock(tmp_path).release()
                (tmp_path / "run.lock").write_text("123456\n")
        finally:
            ended.set()
        assert looks.result()


OF_STREAM = RunConfig(method="base", network="wrn-10-1", epochs=1, tasks=4, device="cpu")


def test_folds_are_learned_and_evaluated_on_what_they_hold_out(tmp_path: Path) -> None:
    dataset = make_dataset(noise=True)
    folds = build_stream(dataset, OF_STREAM).validation_folds()
    results = [
        run(OF_STREAM, tmp_path / str(number), dataset=dataset, stream=fold)
        for number, fold in enumerate(folds)
    ]
    for result, fold in zip(results, folds, strict=True):
        assert len(result["R"]) == 2, "half of the tasks"
        held_out = [len(task.test) for task in fold.tasks]
        assert [task["test_images"] for task in result["tasks"]] == held_out
    assert len({result["stream"]["fingerprint"] for result in results}) == 3
    with pytest.raises(RunFolderError, match="other data"):
        run(OF_STREAM, tmp_path / "0", dataset=dataset, stream=folds[1])
    with pytest.raises(StreamError, match="fingerprint"):
        run(OF_STREAM, dataset=make_dataset(per_class=21), stream=folds[0])


def test_the_command_learns_a_saved_stream_as_it_was_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, out = str(tmp_path / "stream.json"), tmp_path / "out"
    describe = (
        f"stream --task-sizes 50 10 --labels-per-class 3 --unlabeled-per-task 20 --save {saved}"
    )
    assert main([*describe.split(), "--seed", "5"]) == 0
    train = f"run --method base --network wrn-10-1 --epochs 1 --quiet --stream {saved} --out {out}"
    assert main([*train.split(), "--tasks", "5"]) == 2
    assert f"tasks is 2 in {saved}, not 5" in capsys.readouterr().err
    (tmp_path / "run.yaml").write_text("coreset: 60\ntask-sizes: [50, 10]")
    assert main([*train.split(), "--config", str(tmp_path / "run.yaml"), "--tasks", "2"]) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["task_sizes"] == [50, 10]
    assert result["config"]["labels_per_class"] == 3 and result["seed"] == 5
    assert result["config"]["coreset"] == 60 and result["config"]["tasks"] is None
    assert "/" in result["stream"]["fingerprint"]
