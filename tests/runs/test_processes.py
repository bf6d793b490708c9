"""Runs that survive, in processes of their own: SIGKILL, Ctrl-C, SIGTERM, and two at once.

One helper process has imported everything; each command runs in a fork of it, as a process that
can be killed but need not wait for torch.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from interrupted_runs import interrupted
from small_runs import SOURCE, TESTS, as_words, six_classes, without_times

from distillmatch.config import RunConfig
from distillmatch.methods import method_names
from distillmatch.runs import read_result, run
from distillmatch.runs.checkpoints import Checkpoints

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")

HELPER = """
import json, os, sys, traceback
import torch._dynamo  # the first optimizer would import it, in every fork
import distillmatch.report.comparison, distillmatch.runs, small_runs
from distillmatch.cli import main

for line in sys.stdin:
    command = json.loads(line)
    if "wait" in command:
        _, status = os.waitpid(command["wait"], 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
        continue
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    error = os.open(command["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(error, 2)
    os.dup2(error, 1)
    code = 1
    try:
        code = main(command["words"])
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
Start = Callable[..., "Process"]


class Process:
    """A command under way."""

    def __init__(self, helper: subprocess.Popen[str], words: list[str], stderr: Path) -> None:
        self.helper = helper
        self.stderr = stderr
        self.pid = self.ask({"words": words, "stderr": str(stderr)})

    def ask(self, command: dict[str, Any]) -> int:
        assert self.helper.stdin is not None and self.helper.stdout is not None
        self.helper.stdin.write(json.dumps(command) + "\n")
        self.helper.stdin.flush()
        return int(self.helper.stdout.readline())

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        return self.ask({"wait": self.pid})

    def said(self) -> list[str]:
        return self.stderr.read_text().splitlines()


@pytest.fixture(name="start", scope="module")
def helper_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    folder = tmp_path_factory.mktemp("said")
    numbers = iter(range(1000))
    with subprocess.Popen(
        [sys.executable, "-c", HELPER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as helper:
        yield lambda words: Process(helper, words, folder / str(next(numbers)))
        assert helper.stdin is not None
        helper.stdin.close()


def words_for(out: Path, method: str, **options: Any) -> list[str]:
    """Return the command for an interrupted run; options that no run has are the command's own."""
    own = {key: options.pop(key) for key in [*options] if key not in RunConfig.model_fields}
    config = interrupted(method=method, source=SOURCE, **options)
    given = config.model_dump(mode="json", exclude_defaults=True)
    words = ["run", "--out", str(out), "--quiet", "--checkpoint-seconds", "1e-9"]
    return [*words, *as_words({"method": method, **given, **own})]


def never_killed(method: str, **options: Any) -> dict[str, Any]:
    config = interrupted(method=method, source=SOURCE, **options)
    return without_times(run(config, dataset=six_classes()))


def newest_checkpoint(out: Path) -> int:
    found = (out / "checkpoints").glob("*.safetensors")
    return max((int(path.stem) for path in found), default=0)


def wait_for_checkpoint(out: Path, after: int = 0) -> None:
    end = time.monotonic() + 60
    while newest_checkpoint(out) <= after:
        assert time.monotonic() < end, "no checkpoint came"
        time.sleep(0.005)


def kill_until_done(start: Start, words: list[str], wait: Callable[[], float]) -> None:
    """Start a command again and again, killing it the first four times if it has not ended."""
    kills = 0
    while True:
        process = start(words)
        if kills < 4:
            time.sleep(wait())
            process.send(signal.SIGKILL)
        code = process.wait()
        if code == 0:
            break
        assert code == -signal.SIGKILL, process.said()
        kills += 1
    assert kills


@pytest.mark.parametrize("name", method_names())
def test_sigkill_at_random_moments_changes_nothing(name: str, start: Start, tmp_path: Path) -> None:
    words, chance = words_for(tmp_path / "run", method=name), random.Random(name)
    kill_until_done(start, words, lambda: chance.uniform(0.02, 0.4))
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"result.json", "log.jsonl"}
    assert without_times(read_result(tmp_path / "run")) == never_killed(method=name)


def test_signals_write_a_checkpoint_and_say_how_to_continue(start: Start, tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "e2e", "epochs": 10}
    out = tmp_path / "run"
    # Checkpoints come after tasks only, so that one within a task is the signal's.
    words = [word if word != "1e-9" else "0" for word in words_for(out, **options)]
    for signal_number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        before = newest_checkpoint(out)
        process = start(words)
        wait_for_checkpoint(out, before)
        process.send(signal_number)
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
    start: Start, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = words_for(out, method="base", epochs=16)
    process = start(words)
    wait_for_checkpoint(out)
    for _ in range(200):
        process.send(signal.SIGINT)
    assert process.wait() == 130
    assert process.said()[-1].startswith("distillmatch: stopped")
    assert start(words).wait() == 0
    assert without_times(read_result(out)) == never_killed(method="base", epochs=16)


def test_a_second_process_in_the_same_folder_is_refused(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = words_for(out, method="base", epochs=16)
    first = start(words)
    wait_for_checkpoint(out)
    first.send(signal.SIGSTOP)  # or it may be done before the second has begun
    second = start(words)
    assert second.wait() == 2
    (sentence,) = second.said()
    assert f"another process ({first.pid}) is running in this folder" in sentence
    first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    third = start(words)
    assert third.wait() == 0
    assert f"process {first.pid} left {out} without an end" in third.said()[0]
    assert third.said()[1].startswith("distillmatch: continuing in task ")


def test_the_installed_command_is_killed_and_continued(tmp_path: Path) -> None:
    """The same with nothing prepared: a fresh interpreter each time."""
    out = tmp_path / "run"
    words = words_for(out, method="dm", epochs=6)
    command = [sys.executable, "-m", "distillmatch", *words]
    with subprocess.Popen(command, env=ENVIRONMENT) as process:
        wait_for_checkpoint(out, 5)
        process.send_signal(signal.SIGKILL)
    must = [*command, "--resume", "must"]
    done = subprocess.run(must, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 2 and "continuing in task" in done.stderr
    assert without_times(read_result(out)) == never_killed(method="dm", epochs=6)
