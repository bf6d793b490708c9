"""The queue of a suite: what is handed out, in which order, and to whom."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import COMMON, six_classes

from distillmatch.config import RunConfig
from distillmatch.runs import run, write_result
from distillmatch.runs.lock import FolderLock
from distillmatch.runs.side_by_side import Job
from distillmatch.suite.ledger import Ledger
from distillmatch.suite.queue import Queue, error_file
from distillmatch.suite.worker import Event

CONFIG = RunConfig(**{**COMMON, "tasks": 3})


def nothing(sentence: str) -> None:
    """Take what is said, and do nothing with it."""


def jobs_in(folder: Path, *methods: str, seeds: int = 1) -> list[Job]:
    return [
        Job(f"{method}{seed}", CONFIG.replace(method=method, seed=seed), folder / f"{method}{seed}")
        for method in methods
        for seed in range(1, seeds + 1)
    ]


@pytest.fixture(name="result", scope="module")
def result_of_base() -> dict[str, Any]:
    """The result of `jobs_in(..., "base")`'s first."""
    config = CONFIG.replace(method="base", seed=1)
    return run(config, dataset=six_classes(config))


def test_the_longest_runs_come_first(tmp_path: Path) -> None:
    methods = ("base", "offline", "e2e", "dm")
    jobs = jobs_in(tmp_path, *methods)
    jobs.append(Job("longer", CONFIG.replace(method="base", epochs=9), tmp_path / "longer"))
    jobs[1] = Job("offline1", jobs[1].config.replace(tasks=10), jobs[1].out)
    queue = Queue(jobs, None, nothing)
    taken = [job.name for job in iter(queue.take, None)]
    assert taken == ["longer", "offline1", "dm1", "e2e1", "base1"]


def test_a_result_in_its_folder_is_gathered_if_it_is_this_runs_and_no_other_process_has_it(
    tmp_path: Path, result: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distillmatch.suite.queue.LOOK_SECONDS", 0.0)
    ledger, said = Ledger(tmp_path / "ledger"), list[str]()
    (job,) = jobs_in(tmp_path, "base")
    write_result({**result, "config": {**result["config"], "epochs": 7}}, job.out)
    assert Queue([job], ledger, nothing).take() == job, "the result is of another run"
    lock = FolderLock(job.out)
    queue = Queue([job], ledger, said.append)
    assert queue.names("elsewhere") == ["base1"] and queue.take() is None
    for _ in range(2):
        queue.look_elsewhere()
    assert said == ["waiting for runs of other processes: base1"]
    matrices = {name: [row[:1] for row in result[name][:1]] for name in "RAP"}
    begun = {**result, **matrices, "complete": False, "tasks": result["tasks"][:1]}
    write_result(begun, job.out)
    queue.look_elsewhere()
    assert queue.entries["base1"].share == pytest.approx(1 / 3) and not queue.over
    write_result(result, job.out)
    lock.release()
    assert not ledger.results()
    queue.look_elsewhere()
    assert queue.over and ledger.results() == [result]
    assert Queue([job], ledger, nothing).names("done") == ["base1"]


def test_a_run_that_failed_in_another_process_is_not_tried_again_but_an_earlier_failure_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distillmatch.suite.queue.LOOK_SECONDS", 0.0)
    (job,) = jobs_in(tmp_path, "base")
    first = Queue([job], None, nothing)
    assert first.take() == job
    lock = FolderLock(job.out)
    second = Queue([job], None, nothing)
    assert second.take() is None
    lock.release()
    first.handle(Event("failed", job.name, ("no luck", "where")))
    second.look_elsewhere()
    assert second.over and second.entries[job.name].reason == "no luck (in another process)"
    assert error_file(job).read_text() == "no luck\n\nwhere"
    later = Queue([job], None, nothing)
    assert later.take() == job


def test_a_lost_run_is_handed_out_once_more(tmp_path: Path) -> None:
    said: list[str] = []
    (job,) = jobs_in(tmp_path, "base")
    queue = Queue([job], None, said.append)
    assert queue.take() == job
    queue.handle(Event("lost", "base1", ("its worker died", 1)))
    assert queue.take() == job
    queue.handle(Event("lost", "base1", ("its worker died", 1)))
    assert queue.take() is None and queue.over
    assert queue.entries["base1"].reason == "its worker died (2 times)"
    assert said[0] == "base1: its worker died; another worker goes on with it"


@settings(max_examples=20, deadline=None)
@given(turns=st.lists(st.integers(0, 2), min_size=12, max_size=30))
def test_processes_that_share_folders_run_everything_once(
    turns: list[int], result: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Three queues take and finish runs in any order of events; a run under way is locked."""
    jobs = jobs_in(tmp_path_factory.mktemp("work"), "base", seeds=4)
    queues = [Queue(jobs, None, nothing) for _ in range(3)]
    under_way: dict[int, tuple[Job, FolderLock]] = {}
    begun: list[str] = []

    def step(turn: int) -> None:
        queue = queues[turn]
        queue._looked_at = float("-inf")
        queue.look_elsewhere()
        if turn in under_way:
            job, lock = under_way.pop(turn)
            made = {**result, "config": {**result["config"], "seed": job.config.seed}}
            write_result(made, job.out)
            lock.release()
            queue.handle(Event("finished", job.name, (made,)))
        elif (job_taken := queue.take()) is not None:
            under_way[turn] = job_taken, FolderLock(job_taken.out)
            begun.append(job_taken.name)

    for turn in [*turns, *[0, 1, 2] * 12]:
        step(turn)
    assert sorted(begun) == [job.name for job in jobs]
    assert all(queue.over for queue in queues)
