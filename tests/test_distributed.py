"""One run in several processes: the same results as in one, stopped and failing together.

The processes are real ones, of torchrun, that talk by gloo; `in_ranks.py` is what they do.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from in_ranks import METHODS, config_of
from test_checkpoints import six_classes, tiny, without_times

from distillmatch.cli import main
from distillmatch.engine.distributed import Ranks
from distillmatch.errors import ConfigError, RunFolderError, SourceError, TrainingError
from distillmatch.methods import Schedule, Training, find_method
from distillmatch.run import read_result, run
from distillmatch.run.folder import Found
from distillmatch.run.log import history, read_log
from distillmatch.run.ranks import check_ranks, found_by_first
from distillmatch.run.result import recorded_config

TESTS = Path(__file__).parent
SEARCHED = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
ENVIRONMENT = {**os.environ, "PYTHONPATH": SEARCHED, "OMP_NUM_THREADS": "1"}
Result = dict[str, Any]
Value = TypeVar("Value")


def torchrun(count: int, *words: str) -> list[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*start, "--nproc-per-node", str(count), *words]


@dataclass(frozen=True)
class Learned:
    """What two processes have left behind, and what they and torchrun said."""

    out: Path
    code: int
    said: list[str]


@pytest.fixture(name="learned", scope="module")
def learned_by_two(tmp_path_factory: pytest.TempPathFactory) -> Learned:
    out = tmp_path_factory.mktemp("ranks")
    words = torchrun(2, str(TESTS / "in_ranks.py"), "learn", str(out))
    done = subprocess.run(
        words, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300
    )
    return Learned(out, done.returncode, done.stderr.splitlines())


@cache
def by_one(method: str, **options: Any) -> Result:
    return run(config_of(method, **options), dataset=six_classes())


def assert_same_within_rounding(found: Result, expected: Result, tolerance: float = 1e-4) -> None:
    assert found["complete"]
    for name in ("A", "R", "P"):
        assert found[name] == expected[name]
    for ours, theirs in zip(found["tasks"], expected["tasks"], strict=True):
        assert ours["accuracy"] == theirs["accuracy"]
        assert list(ours["losses"]) == list(theirs["losses"])
        for name, means in theirs["losses"].items():
            assert ours["losses"][name] == pytest.approx(means, rel=tolerance)
        for name, figure in theirs["detector"].items():
            near = None if figure is None else pytest.approx(figure, rel=tolerance)
            assert ours["detector"][name] == near


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_learn_what_one_does(learned: Learned, method: str) -> None:
    result = read_result(learned.out / method)
    assert_same_within_rounding(result, by_one(method))
    assert recorded_config(config_of(method)) == result["config"]
    assert result["machine"]["device"] == "2 × CPU"


def test_one_process_writes_the_log(learned: Learned) -> None:
    entries = read_log(learned.out / "dm")
    assert [entry["event"] for entry in entries].count("begun") == 1
    epochs = [(e["training"], e["step"]) for e in entries if e["event"] == "epoch"]
    assert len(epochs) == len(set(epochs)) > 0


def test_a_signal_to_one_process_stops_all_where_they_can_be_continued(learned: Learned) -> None:
    for moment in (2, 4):
        first, second = (
            (learned.out / f"stopped-{moment}-{number}.txt").read_text() for number in (0, 1)
        )
        assert first.startswith("stopped by SIGTERM in task ")
        assert first.startswith(second) and "the same command continues from there" in first
    stopped, never = (read_result(learned.out / name) for name in ("stopped", "dm"))
    assert without_times(stopped) == without_times(never)


def test_what_two_processes_began_is_continued_by_one(learned: Learned) -> None:
    told: list[str] = []
    result = run(config_of("dm"), learned.out / "left", dataset=six_classes(), tell=told.append)
    (sentence,) = told
    place = "continuing in task 2 of 2 after epoch 1 of training 1"
    assert sentence == f"{place} (device was 2 × CPU and is CPU)"
    assert_same_within_rounding(result, by_one("dm"))


def test_a_process_that_fails_ends_all_with_one_sentence(learned: Learned) -> None:
    assert learned.code != 0
    ours = [line for line in learned.said if line.startswith("distillmatch:")]
    assert ours == ["distillmatch: error: this machine has no images"]
    assert learned.said.count("Traceback (most recent call last):") == 1, "torchrun's own"
    assert not (learned.out / "failed" / "result.json").exists()


def test_the_command_is_stopped_through_torchrun_and_continued_alone(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = {**tiny().model_dump(exclude_unset=True), "epochs": 30, "tasks": 2, "method": "base"}
    options |= {"source": "test_checkpoints:six_classes", "checkpoint-seconds": 0.01, "out": out}
    words = ["run", "--quiet"]
    for key, value in options.items():
        words += [f"--{key.replace('_', '-')}", str(value)]
    command = torchrun(2, "-m", "distillmatch", *words)
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        while not list(out.glob("checkpoints/*.safetensors")) and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said = [line for line in process.stderr if line.startswith("distillmatch:")]
    assert len(said) == 1 and said[0].startswith("distillmatch: stopped by SIGTERM in task ")
    assert not (out / "run.lock").exists()
    assert main([*words, "--resume", "must"]) == 0
    assert read_result(out)["complete"]
    epochs = [(e["task"], e["epoch"]) for e in history(read_log(out)) if e["event"] == "epoch"]
    assert epochs == [(task, epoch) for task in (1, 2) for epoch in range(1, 31)]


@dataclass(frozen=True, eq=False)
class FakeRanks(Ranks):
    """The second of two processes, of which the first says what it is told to."""

    says: Any = None

    def from_first(self, value: Value) -> Value:
        said: Value = value if self.says is None else self.says
        return said


def second(says: Any = None) -> FakeRanks:
    return FakeRanks(1, 2, 1, 2, None, says)


@pytest.mark.parametrize(
    ("options", "at_once", "sentence"),
    [
        ({"batch": 9}, None, "batch must be a multiple of 2, the number of processes, not 9"),
        ({"unlabeled_batch": 7}, None, "unlabeled_batch must be a multiple of 2"),
        ({"last_batches": "short"}, None, "last_batches must be 'filled' under torchrun"),
        (
            {"labeled_statistics": "apart", "accepted_statistics": "labeled"},
            None,
            "accepted_statistics must be 'unlabeled' under torchrun",
        ),
        ({"method": "offline"}, 2, "at_once must be 1 under torchrun, not 2"),
    ],
)
def test_what_processes_cannot_share_is_refused(
    options: dict[str, Any], at_once: int | None, sentence: str
) -> None:
    config = tiny(**options)
    with pytest.raises(ConfigError, match=sentence):
        check_ranks(second(), config, find_method(config.method), at_once)


def test_processes_that_were_told_different_things_are_refused() -> None:
    other = recorded_config(tiny(seed=2, epochs=5))
    with pytest.raises(ConfigError, match="processes 0 and 1 were given different seed, epochs"):
        check_ranks(second(other), tiny(), find_method("dm"), None)
    with pytest.raises(SourceError, match="process 1 has other data than process 0"):
        found_by_first(second((Found(), "theirs")), Found(), "ours")
    with pytest.raises(RunFolderError, match="continue them without torchrun"):
        found_by_first(second((Found(stages={}), "same")), Found(), "same")


def test_a_network_that_would_normalize_by_parts_is_refused() -> None:
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    training = Training("any", network, lambda batch: batch.images.sum(), Schedule(1, 0.1))
    with pytest.raises(ConfigError, match="the network has a BatchNorm2d"):
        second().shared_training(training)


def test_a_batch_that_a_method_cuts_unevenly_is_refused() -> None:
    network = torch.nn.Linear(4, 2)
    images = torch.ones(5, 4)
    training = Training("any", network, lambda batch: network(images).sum(), Schedule(1, 0.1))
    shared = second().shared_training(training)
    with pytest.raises(TrainingError, match="gives its network 5 images at once"):
        shared.loss(None)  # type: ignore[arg-type]
    assert network(images).shape == (5, 2), "the network is as it was"


@pytest.mark.parametrize("option", ["--seeds 1,2", "--runs-per-gpu 2", "--at-once 2"])
def test_several_runs_under_torchrun_are_refused(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In a torchrun of this process alone."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    for name, value in {**alone, "MASTER_PORT": "0", "TORCHELASTIC_RUN_ID": "test"}.items():
        monkeypatch.setenv(name, value)
    try:
        assert main(["run", "--out", str(tmp_path / "run"), *option.split()]) == 2
    finally:
        torch.distributed.destroy_process_group()
    name, _ = option.split()
    assert f"{name} cannot be given under torchrun" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 2])
def test_a_gpu_learns_the_same_among_processes(count: int, tmp_path: Path) -> None:
    """One process by NCCL; two by gloo, which lets them share a GPU."""
    words = torchrun(count, str(TESTS / "in_ranks.py"), "gpu", str(tmp_path))
    subprocess.run(words, env=ENVIRONMENT, check=True, timeout=300)
    for precision, tolerance in (("float32", 1e-3), ("bfloat16", 5e-2)):
        expected = by_one("dm", device="cuda", precision=precision)
        for ours, theirs in zip(
            read_result(tmp_path / precision)["tasks"], expected["tasks"], strict=True
        ):
            for name, means in theirs["losses"].items():
                assert ours["losses"][name] == pytest.approx(means, rel=tolerance)
