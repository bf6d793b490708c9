"""`distillmatch suite run` with real worker processes: shared, killed, interrupted, failing."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import COMMON, PYTHONPATH, SIGNALS, SOURCE, plan_signals, without_times

from distillmatch.cli import main
from distillmatch.config import RunConfig
from distillmatch.errors import SourceError
from distillmatch.runs import read_result, run
from distillmatch.runs.lock import FolderLock
from distillmatch.runs.result import config_of
from distillmatch.runs.side_by_side import Job
from distillmatch.suite.ledger import Ledger
from distillmatch.suite.local import on_gpus
from distillmatch.suite.worker import Event, work

Result = dict[str, Any]
SHAPES = dict[str, Any](source="shapes", labels_per_class=4, unlabeled_per_task=60, batch=32)
ROWS: dict[str, dict[str, Any]] = {"Base": {"method": "base"}, "DM": {"method": "dm"}}


@pytest.fixture(autouse=True)
def _sources_can_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("COLUMNS", "200")


def experiment(folder: Path, rows: dict[str, dict[str, Any]] = ROWS, **options: Any) -> None:
    content = {"title": "tiny", "metrics": ["A_N"], "common": {**COMMON, **options}, "rows": rows}
    content["columns"] = {"uniform": {"unlabeled": "uniform"}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(content))


def words(folder: Path, *more: str) -> list[str]:
    places = ["--ledger", str(folder / "ledger"), "--work", str(folder / "work")]
    for name in (SOURCE, "small_runs:broken"):
        places += ["--allow-import", name]
    return ["suite", "run", str(folder / "tiny.yaml"), *places, *more]


def ledger_of(folder: Path) -> list[Result]:
    return Ledger(folder / "ledger").results()


def begun(folder: Path) -> list[str]:
    """The runs that were begun, each as often as that happened."""
    logs = sorted((folder / "work").glob("*/log.jsonl"))
    lines = [(log.parent.name, json.loads(s)) for log in logs for s in log.read_text().splitlines()]
    return [name for name, line in lines if line["event"] == "begun"]


def test_results_are_those_of_runs_alone_and_a_failing_run_is_reported_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {"method": "dm", "source": "small_runs:broken"}
    experiment(tmp_path, {**ROWS, "Broken": broken}, **SHAPES)
    assert main(words(tmp_path, "--seeds", "1", "--dry-run")) == 0
    assert "5 to run" in capsys.readouterr().out
    assert not (tmp_path / "work").exists()
    assert main(words(tmp_path, "--seeds", "1")) == 1
    captured = capsys.readouterr()
    assert "3 of 5 runs done, 2 failed; results are in" in captured.out
    (line,) = [line for line in captured.out.splitlines() if line.startswith("failed: ")]
    assert "SourceError: there are no images here (see error.txt in each one's folder" in line
    logs = sorted(tmp_path.glob("work/*/error.txt"))
    assert len(logs) == 2, "of the run and its bound"
    assert all(log.parent.name in line and "small_runs.py" in log.read_text() for log in logs)
    assert captured.err.count("there are no images here") == 1
    results = ledger_of(tmp_path)
    assert sorted(result["method"] for result in results) == ["base", "dm", "offline"]
    for result in results:
        assert without_times(result) == without_times(run(config_of(result)))
    before = begun(tmp_path)
    experiment(tmp_path, **SHAPES)
    assert main(words(tmp_path, "--seeds", "1")) == 0
    assert begun(tmp_path) == before and len(before) == 3
    assert main(words(tmp_path, "--seeds", "1,2", "--dry-run", "--methods", "base")) == 0
    listed = capsys.readouterr().out
    assert listed.count("in the ledger") == 2 and "2 to run" in listed and "-dm" not in listed


class Line:
    """A connection over which jobs come, and events go, unless its other end is dead."""

    def __init__(self, *jobs: Job, is_dead: bool = False) -> None:
        self.jobs, self.is_dead, self.events = list(jobs), is_dead, list[Event]()

    def recv(self) -> Job:
        if not self.jobs:
            raise EOFError
        return self.jobs.pop(0)

    def send(self, event: Event) -> None:
        if self.is_dead:
            raise BrokenPipeError
        self.events.append(event)


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_worker_goes_on_after_a_failure_and_finishes_its_run_for_a_parent_that_died(
    at_once: int, tmp_path: Path
) -> None:
    config = RunConfig(**COMMON, method="base")
    jobs = [
        Job("broken", config.replace(source="small_runs:broken"), tmp_path / "broken"),
        Job("held", config, tmp_path / "held"),
        Job("good", config, tmp_path / "good"),
    ]
    lock, line = FolderLock(tmp_path / "held"), Line(*jobs)
    work(line, at_once, 60.0)
    lock.release()
    ends = [(e.kind, e.name) for e in line.events if e.kind not in ("say", "progress")]
    assert sorted(ends) == [("failed", "broken"), ("finished", "good"), ("locked", "held")]
    shares = [event.details for event in line.events if event.kind == "progress"]
    assert shares[0] == (0.0,) and shares == sorted(shares)
    (tmp_path / "good" / "result.json").unlink()
    work(Line(jobs[2], is_dead=True), at_once, 60.0)
    assert read_result(tmp_path / "good")["complete"]


def test_killed_workers_and_signals_to_the_command_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment(tmp_path, {"Base": {"method": "base"}}, epochs=40)
    command = words(tmp_path, "--seeds", "1", "--jobs", "1", "--checkpoint-seconds", "1e-9")
    monkeypatch.setenv(SIGNALS, str(tmp_path / "signals"))
    plan_signals(tmp_path / "signals", 10, signal.SIGKILL)
    plan_signals(tmp_path / "signals", 10, signal.SIGTERM, parent=True)
    with pytest.raises(SystemExit) as end:
        main(command)
    assert end.value.code == 143
    said = capsys.readouterr().err
    assert "its worker ended by signal SIGKILL" in said and "continuing in task" in said
    assert said.endswith("2 runs left; the same command continues from there\n")
    assert not list(tmp_path.glob("work/*/run.lock"))
    assert main(command) == 0
    assert "continuing in task" in capsys.readouterr().err and len(begun(tmp_path)) == 2
    for result in ledger_of(tmp_path):
        assert without_times(result) == without_times(run(config_of(result)))


def test_data_that_cannot_be_had_are_asked_for_once_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries: list[str] = []

    def download(url: str, *others: object) -> None:
        tries.append(url)
        raise SourceError(f"downloading {url} failed: no network")

    monkeypatch.setattr("distillmatch.sources.cifar100.download", download)
    experiment(tmp_path, source="cifar100", cache_dir=str(tmp_path / "cache"))
    assert main(words(tmp_path, "--seeds", "1,2,3")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("failed: no network") and len(tries) == 1
    assert not list(tmp_path.glob("work/*"))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--work", "tiny.yaml/x"], "Not a directory while making the folder"),
        (["--runs-per-gpu", "2"], "these runs use no GPU; on a CPU, --jobs says"),
        (["--engine", "ray", "--jobs", "2"], "--jobs goes with --engine local"),
        (["--engine", "ray"], "pip install 'distillmatch[ray]'"),
    ],
)
def test_wrong_input_is_one_sentence_before_any_run(
    more: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("distillmatch.suite.ray_engine.find_spec", lambda name: None)
    experiment(tmp_path, source="cifar100")
    assert main(words(tmp_path, *more)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line and not list(tmp_path.glob("work/*"))


@pytest.mark.parametrize(
    ("visible", "jobs", "devices"),
    [("", None, ["0", "1"]), ("3,5", None, ["3", "5"]), ("3,5", 3, ["3", "5", "3"])],
)
def test_each_worker_sees_one_gpu(
    visible: str, jobs: int | None, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in on_gpus(2, jobs)] == devices
