"""Runs in processes of their own: killed and resumed, interrupted, and two in one folder.

They are signaled after a number of training steps, however fast the machine is.
"""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from interrupted_runs import interrupted
from processes import Command
from small_runs import (
    PYTHONPATH,
    SIGNALS,
    SOURCE,
    as_words,
    plan_signals,
    six_classes,
    without_times,
)

from distillmatch.config import RunConfig
from distillmatch.runs import read_result, run
from distillmatch.runs.checkpoints import Checkpoints

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")

ENVIRONMENT = {**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}


class Starter:
    """Starts commands, and plans the signals that the next of them sends itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def __call__(self, words: list[str], stderr: Path | None = None) -> Command:
        self.count += 1
        environment = {SIGNALS: str(self.folder / "signals"), "PYTHONPATH": PYTHONPATH}
        return Command(words, stderr or self.folder / f"said-{self.count}", environment)

    def signal_in(self, steps: int, *numbers: int, parent: bool = False) -> None:
        plan_signals(self.folder / "signals", steps, *numbers, parent=parent)


@pytest.fixture(name="start")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Starter:
    return Starter(tmp_path_factory.mktemp("said"))


def words_for(out: Path, method: str, **options: Any) -> list[str]:
    """Return the command for an interrupted run; options that no run has are the command's own."""
    own = {key: options.pop(key) for key in [*options] if key not in RunConfig.model_fields}
    config = interrupted(method=method, source=SOURCE, **options)
    given = config.model_dump(mode="json", exclude_defaults=True)
    words = ["run", "--out", str(out), "--quiet"]
    return [*words, *as_words({"method": method, "checkpoint_seconds": 1e-9, **given, **own})]


def never_killed(method: str, **options: Any) -> dict[str, Any]:
    config = interrupted(method=method, source=SOURCE, **options)
    return without_times(run(config, dataset=six_classes()))


@pytest.mark.parametrize("own", [{"method": "dm"}, {"method": "offline", "at_once": 3}])
def test_sigkill_at_random_steps_changes_nothing(
    own: dict[str, Any], start: Starter, tmp_path: Path
) -> None:
    """It is sent up to four times: how much was kept before depends on the machine."""
    words, chance = words_for(tmp_path / "run", **own, epochs=6), random.Random(5)
    codes: list[int] = []
    while 0 not in codes:
        if len(codes) < 4:
            start.signal_in(chance.randint(1, 6), signal.SIGKILL)
        process = start(words)
        codes.append(process.wait())
        assert codes[-1] in (0, -signal.SIGKILL), process.said()
    assert len(codes) > 1
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"result.json", "log.jsonl"}
    assert without_times(read_result(tmp_path / "run")) == never_killed(own["method"], epochs=6)


def test_signals_write_a_checkpoint_and_say_how_to_continue(start: Starter, tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "e2e", "epochs": 10}
    out = tmp_path / "run"
    # Checkpoints come after tasks only, so that one within a task is the signal's.
    words = words_for(out, **options, checkpoint_seconds=0)
    for signal_number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        start.signal_in(15, signal_number)
        process = start(words)
        assert process.wait() == code, process.said()
        kept, problems = Checkpoints(out).load()
        assert kept is not None and not problems
        place = kept.values["engine"]
        where = f"task {place['task'] + 1} of 3"
        if place["epochs"]:
            where += f" after epoch {place['epochs']} of training {place['trainings'] + 1}"
        assert process.said()[-1] == (
            f"distillmatch: stopped by {signal.Signals(signal_number).name} in {where}; what is "
            f"done is in {out}, and the same command continues from there"
        )
        assert not (out / "run.lock").exists()
    last = start(words)
    assert last.wait() == 0
    assert last.said()[0].startswith("distillmatch: continuing in task ")
    assert without_times(read_result(out)) == never_killed(**options)
    again = start(words)
    assert again.wait() == 0 and "nothing was run" in again.said()[0]


def test_a_second_signal_stops_at_once_and_loses_only_the_epoch(
    start: Starter, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = words_for(out, method="base")
    start.signal_in(5, *[signal.SIGINT] * 200)
    process = start(words)
    assert process.wait() == 130
    assert process.said()[-1].startswith("distillmatch: stopped")
    assert start(words).wait() == 0
    assert without_times(read_result(out)) == never_killed(method="base")


def test_a_second_process_in_the_same_folder_is_refused(start: Starter, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = words_for(out, method="base")
    start.signal_in(5, signal.SIGSTOP)
    first = start(words)
    first.wait_until_stopped()
    second = start(words)
    assert second.wait() == 2
    (sentence,) = second.said()
    assert f"a process ({first.pid}) is running in this folder" in sentence
    first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    third = start(words)
    assert third.wait() == 0
    assert third.said()[0].startswith("distillmatch: continuing in task ")


def test_a_run_goes_on_when_nobody_reads_its_progress(start: Starter, tmp_path: Path) -> None:
    words = [word for word in words_for(tmp_path / "run", method="base") if word != "--quiet"]
    os.mkfifo(tmp_path / "progress")
    reader = os.open(tmp_path / "progress", os.O_RDONLY | os.O_NONBLOCK)
    start.signal_in(5, signal.SIGSTOP)
    process = start(words, tmp_path / "progress")
    process.wait_until_stopped()
    assert b"base" in os.read(reader, 1000)
    os.close(reader)
    process.send(signal.SIGCONT)
    assert process.wait() == 0
    assert read_result(tmp_path / "run")["complete"]
