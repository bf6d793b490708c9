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
    configs = [
        small(method="dm", seed=2),
        small(method="dm", seed=3),
        small(method="gd", coreset=0),
        small(method="offline"),
        small(method="base", network="wrn-10-2"),
    ]
    jobs = [Job(str(n), config, tmp_path / str(n)) for n, config in enumerate(configs)]
    results, failures = do(jobs, 3)
    assert not failures
    for job in jobs:
        alone = without_times(run(job.config, dataset=six_classes()))
        assert without_times(results[job.name]) == alone
        assert without_times(read_result(job.out)) == alone


def test_a_run_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    configs = {
        "wrong": small(network="wrn-11-1"),
        "right": small(method="base"),
        "wild": small(method="base", learning_rate=1e30),
        "right too": small(method="e2e"),
    }
    jobs = [Job(name, config, tmp_path / name) for name, config in configs.items()]
    results, failures = do(jobs, 2)
    assert results.keys() == {"right", "right too"} and all(r["complete"] for r in results.values())
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


def test_a_seed_that_fails_is_named_and_the_others_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    run(small(method="gd", epochs=1), tmp_path / "seed-1", dataset=six_classes())
    words = [word for word in seeds(tmp_path, method="base", epochs=1) if word != "--quiet"]
    assert main(words) == 2
    said = capsys.readouterr()
    (last,) = said.err.splitlines()[-1:]
    assert last.startswith("distillmatch: error: seed-1 failed: RunFolderError: ")
    assert any("Base" in line for line in said.out.splitlines()), "the others are compared"
    found = without_times(read_result(tmp_path / "seed-2"))
    assert found == never_killed(method="base", epochs=1, seed=2)


def test_a_result_of_another_saved_stream_is_refused_and_one_of_its_own_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    config, out = small(method="base", epochs=1), tmp_path / "seed-1"
    folds = build_stream(six_classes(), config).validation_folds(2, 3)
    for number, fold in enumerate(folds):
        fold.save(tmp_path / f"{number}.json")
    run(config.replace(seed=1), out, dataset=six_classes(), stream=folds[0])
    before = (out / "result.json").read_bytes()
    options: dict[str, Any] = {"seeds": "1", "method": "base", "epochs": 1}
    assert main(seeds(tmp_path, **options, stream=tmp_path / "1.json")) == 2
    assert "holds a run on other data" in capsys.readouterr().err
    assert main(seeds(tmp_path, **options, stream=tmp_path / "0.json")) == 0
    assert "its result was read, nothing was run" in capsys.readouterr().err
    assert (out / "result.json").read_bytes() == before


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
