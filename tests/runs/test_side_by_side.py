"""Several runs at once in one process end as each does alone, and one signal stops them all."""

import os
import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from interrupted_runs import checkpoint_files, interrupted
from small_runs import PYTHONPATH, SOURCE, six_classes, without_times
from test_processes import (
    Starter,
    never_killed,
    starter,  # noqa: F401 - the fixture `start`
    words_for,
)

from distillmatch.cli import main
from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError, TrainingError
from distillmatch.runs import Interrupted, Job, read_result, run, run_side_by_side, side_by_side
from distillmatch.sources import Dataset
from distillmatch.streams import build_stream

Outcomes = tuple[dict[str, Any], dict[str, Exception]]


def small(**options: Any) -> RunConfig:
    return interrupted(**{"source": SOURCE, "epochs": 2, **options})


def do(jobs: Iterable[Job], at_once: int, **options: Any) -> Outcomes:
    results: dict[str, Any] = {}
    failures: dict[str, Exception] = {}
    waiting = iter(jobs)
    run_side_by_side(
        lambda: next(waiting, None),
        at_once,
        finished=lambda job, result: results.update({job.name: result}),
        failed=lambda job, error: failures.update({job.name: error}),
        **options,
    )
    return results, failures


def test_runs_at_once_end_as_each_does_alone(tmp_path: Path) -> None:
    configs = [small(method="dm", seed=2), small(method="dm", seed=3), small(method="offline")]
    configs += [small(method="gd", coreset=0), small(method="base", network="wrn-10-2")]
    jobs = [Job(str(n), config, tmp_path / str(n)) for n, config in enumerate(configs)]
    results, failures = do(jobs, 3)
    assert not failures
    for job in jobs:
        alone = without_times(run(job.config, dataset=six_classes()))
        assert without_times(results[job.name]) == alone
        assert without_times(read_result(job.out)) == alone


def test_a_run_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    wild, right = small(method="base", learning_rate=1e30), small(method="base")
    configs = {"wrong": small(network="wrn-11-1"), "right": right, "wild": wild}
    results, failures = do([Job(name, one, tmp_path / name) for name, one in configs.items()], 2)
    assert results.keys() == {"right"} and results["right"]["complete"]
    assert isinstance(failures["wrong"], ConfigError)
    assert isinstance(failures["wild"], TrainingError)


def test_data_are_loaded_once_and_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[int] = []

    def counted_load(config: RunConfig) -> Dataset:
        loads.append(config.seed)
        return six_classes()

    monkeypatch.setattr(side_by_side, "load_source", counted_load)
    for source, expected in (("shapes", [1]), (SOURCE, [1, 2])):
        configs = [small(source=source, seed=seed, method="base", epochs=1) for seed in (1, 2)]
        do([Job(f"{source} {c.seed}", c, tmp_path / f"{source} {c.seed}") for c in configs], 1)
        assert loads == expected, "a source of the user's own may depend on the seed"
        loads.clear()


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_signal_ends_the_wait_for_a_job(at_once: int, tmp_path: Path) -> None:
    def never() -> Job | None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(30)
        raise AssertionError("the wait went on")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="stopped by SIGTERM") as stop:
        run_side_by_side(never, at_once, finished=print, failed=print)
    assert stop.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def seeds(out: Path, method: str = "dm", **options: Any) -> list[str]:
    return words_for(out, method, **{"seeds": "1,2", **options})


def test_one_signal_stops_all_seeds_and_the_same_command_continues_them(
    start: Starter, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"method": "base", "epochs": 20}
    words = seeds(tmp_path, **options, checkpoint_seconds=0)
    start.signal_in(40, signal.SIGTERM, parent=True)
    process = start(words)
    assert process.wait() == 143, process.said()
    assert process.said()[-1].endswith("left; the same command continues from there")
    assert any(checkpoint_files(tmp_path / f"seed-{seed}") for seed in (1, 2))
    assert not list(tmp_path.glob("seed-*/run.lock"))
    last = start(words)
    assert last.wait() == 0, last.said()
    assert any("continuing in task" in line for line in last.said())
    for seed in (1, 2):
        found = without_times(read_result(tmp_path / f"seed-{seed}"))
        assert found == never_killed(**options, seed=seed)
    finished = start([*words, "--tensorboard"])
    assert finished.wait() == 0 and len(list(tmp_path.glob("seed-*/tensorboard/events*"))) == 2
    before = (tmp_path / "seed-1" / "result.json").stat().st_mtime
    assert start([*words, "--resume", "no"]).wait() == 0
    assert (tmp_path / "seed-1" / "result.json").stat().st_mtime > before


def test_a_seed_whose_folder_has_a_result_of_another_stream_fails_and_the_others_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    config, dataset = small(method="base", epochs=1), six_classes()
    folds = build_stream(dataset, config).validation_folds(2, 3)
    for number, fold in enumerate(folds):
        fold.save(tmp_path / f"{number}.json")
    run(config.replace(seed=1), tmp_path / "seed-1", dataset=dataset, stream=folds[0])
    before = (tmp_path / "seed-1" / "result.json").read_bytes()

    def learn(fold: int, seeds_of_it: str) -> tuple[int, Any]:
        own = {"seeds": seeds_of_it, "epochs": 1, "stream": tmp_path / f"{fold}.json"}
        words = [word for word in seeds(tmp_path, "base", **own) if word != "--quiet"]
        return main(words), capsys.readouterr()

    code, said = learn(1, "1,2")
    last = said.err.splitlines()[-1]
    assert code == 2 and last.startswith("distillmatch: error: seed-1 failed: RunFolderError: ")
    assert "holds a run on other data" in last
    assert any("Base" in line for line in said.out.splitlines()), "the others are compared"
    alone = run(config.replace(seed=2), dataset=dataset, stream=folds[1])
    assert without_times(read_result(tmp_path / "seed-2")) == without_times(alone)
    code, said = learn(0, "1")
    assert code == 0 and "its result was read, nothing was run" in said.err
    assert (tmp_path / "seed-1" / "result.json").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seed": 3}, "--seed cannot be given together with --seeds"),
        ({"bound": "x"}, "--bound cannot be given together with --seeds"),
        ({"at_once": 2}, "--at-once cannot be given together with --seeds"),
        ({"resume": "must"}, "there is no run to continue"),
    ],
)
def test_seeds_that_cannot_be_run_are_refused(
    options: dict[str, Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = seeds(tmp_path / "run", **options)
    assert main(words) == 2
    assert capsys.readouterr().err.endswith(f"{sentence}\n")
    assert not (tmp_path / "run").exists()
