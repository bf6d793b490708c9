"""Independent tasks learned side by side give the result of tasks learned one after another."""

from pathlib import Path
from typing import Any

import pytest
from interrupted_runs import ALWAYS, DiesAfter, Killed, interrupted
from small_runs import six_classes, without_times

from distillmatch.engine import NoProgress
from distillmatch.errors import RunFolderError
from distillmatch.methods import find_method, method_names
from distillmatch.runs import read_result, run
from distillmatch.runs.checkpoints import Checkpoint, Checkpoints
from distillmatch.runs.log import history, read_log

Result = dict[str, Any]


class Watching(NoProgress):
    """Remembers which tasks were worked on and adds up; may be told to die in one of them."""

    def __init__(self, dies_in: int | None = None) -> None:
        self.dies_in = dies_in
        self.tasks: set[int] = set()
        self.total = self.done = 0.0

    def start(self, total: float, done: float = 0.0) -> None:
        self.total, self.done = total, done

    def advance(self, done: float, doing: str) -> None:
        self.done += done
        task = int(doing.removeprefix("task ").split("/")[0])
        self.tasks.add(task)
        if task == self.dies_in:
            raise Killed


def learn(out: Path | None, at_once: int | None, progress: Any = None, **options: Any) -> Result:
    given = {"resume": "auto", "checkpoint_seconds": ALWAYS, "tell": lambda sentence: None}
    for key in given.keys() & options.keys():
        given[key] = options.pop(key)
    config = interrupted(**{"method": "offline", "epochs": 2, **options})
    return run(
        config, out, dataset=six_classes(), progress=progress, at_once=at_once, **given  # type: ignore[arg-type]
    )  # fmt: skip


def steps_in(folder: Path) -> list[dict[str, Any]]:
    """Return what the log says was learned, without times."""
    entries = history(read_log(folder))
    return [{k: v for k, v in one.items() if k not in ("time", "seconds")} for one in entries]


@pytest.mark.parametrize("method", [m for m in method_names() if find_method(m).independent_tasks])
@pytest.mark.parametrize("at_once", [2, 9])
def test_stages_side_by_side_give_the_result_of_stages_in_a_row(
    method: str, at_once: int, tmp_path: Path
) -> None:
    in_a_row, beside = Watching(), Watching()
    expected = learn(tmp_path / "row", None, in_a_row, method=method)
    result = learn(tmp_path / "beside", at_once, beside, method=method)
    assert without_times(result) == without_times(expected)
    assert read_result(tmp_path / "beside") == result
    assert {p.name for p in (tmp_path / "beside").iterdir()} == {"result.json", "log.jsonl"}
    assert beside.total == beside.done == in_a_row.total
    assert without_times(learn(None, at_once, method=method)) == without_times(expected)
    assert steps_in(tmp_path / "row") == steps_in(tmp_path / "beside")


@pytest.mark.parametrize("epochs", [2, 3])
def test_stages_killed_again_and_again_get_on_and_end_in_the_same_result(
    epochs: int, tmp_path: Path
) -> None:
    for _ in range(3 * 4 + 1):  # each session adds an epoch at least to one of three stages
        try:
            result = learn(tmp_path / "killed", 3, DiesAfter(epochs), epochs=4)
        except Killed:
            continue
        assert without_times(result) == without_times(learn(tmp_path / "row", None, epochs=4))
        assert steps_in(tmp_path / "killed") == steps_in(tmp_path / "row")
        return
    pytest.fail("sessions get no further")


def test_a_finished_stage_is_not_learned_again(tmp_path: Path) -> None:
    with pytest.raises(Killed):  # the first is begun when one of the others is finished
        learn(tmp_path, 2, Watching(dies_in=1))
    kept = {n: Checkpoints(tmp_path / "stages" / f"0{n}").load()[0] for n in (2, 3)}
    finished = {n for n, one in kept.items() if one is not None and one.values["row"]}
    watching = Watching()
    # One at once too goes on with the stages that are there.
    result = learn(tmp_path, 1, watching, resume="must")
    assert finished and not watching.tasks & finished and watching.done == watching.total
    assert without_times(result) == without_times(learn(None, None))
    assert not (tmp_path / "stages").exists()


def test_the_longest_stage_is_learned_first_and_a_failure_stops_the_others(tmp_path: Path) -> None:
    watching = Watching(dies_in=3)
    with pytest.raises(Killed):
        learn(tmp_path, 2, watching, epochs=20)
    assert 3 in watching.tasks and 1 not in watching.tasks
    assert not list(tmp_path.glob("stages/*/run.lock"))
    result = learn(tmp_path, 3, epochs=20)
    assert without_times(result) == without_times(learn(None, None, epochs=20))


def test_a_run_begun_in_a_row_is_continued_side_by_side(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        learn(tmp_path, 1, DiesAfter(4))
    watching = Watching()
    result = learn(tmp_path, 3, watching)
    assert watching.tasks == {2, 3}
    assert without_times(result) == without_times(learn(None, None))
    assert {p.name for p in tmp_path.iterdir()} == {"result.json", "log.jsonl"}


def test_stages_of_another_run_are_refused_and_resume_no_removes_them(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        learn(tmp_path, 2, Watching(dies_in=3))
    assert not (tmp_path / "result.json").exists()
    with pytest.raises(RunFolderError, match="holds another run: seed is 1 there and 2 here"):
        learn(tmp_path, 2, seed=2)
    with pytest.raises(RunFolderError, match="holds another run"):
        learn(tmp_path, None, method="base")
    watching = Watching()
    result = learn(tmp_path, 2, watching, resume="no")
    assert watching.tasks == {1, 2, 3}
    assert without_times(result) == without_times(learn(None, None))
    with pytest.raises(RunFolderError, match="no run to continue"):
        learn(tmp_path / "new", 2, resume="must")


def test_the_time_of_earlier_sessions_is_counted(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        learn(tmp_path, 2, DiesAfter(6), epochs=6)
    stage = next(path.parent for path in tmp_path.glob("stages/*/checkpoints"))
    kept, _ = Checkpoints(stage).load()
    assert kept is not None and kept.values["seconds"] > 0
    Checkpoints(stage).save(Checkpoint({**kept.values, "seconds": 5000.0}, kept.tensors))
    assert 5000 < learn(tmp_path, 2, epochs=6)["seconds"]["total"] < 5060
