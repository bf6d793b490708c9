"""Kills commands at random moments, again and again; what they end with must be as if undisturbed.

    python tests/kill.py --kind run --seconds 600 --seed 7

`run` is DM by the paper's recipe with a coreset, `learn` a learner's second task, `suite` two
processes that share the runs of an experiment, and `ray` the same experiment on a Ray cluster of
this machine. Each round starts afresh, sends up to `KILLS` signals, and lets the command end.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import yaml
from learner_folders import SMALL, make_world
from processes import Command
from small_runs import PYTHONPATH, SOURCE, without_times

from distillmatch.runs import read_result

KILLS = 5
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
RUN = {
    "source": "shapes",
    "method": "dm",
    "recipe": "paper",
    "image_size": 16,
    "tasks": 3,
    "labels_per_class": 5,
    "unlabeled_per_task": 60,
    "coreset": 20,
    "network": "wrn-10-1",
    "epochs": 2,
    "batch": 8,
    "unlabeled_batch": 8,
    "device": "cpu",
}
SUITE: dict[str, Any] = {
    "title": "Small",
    "metrics": ["A_N", "fgt"],
    "seeds": [1, 2],
    "common": {
        **{key: RUN[key] for key in ("network", "batch", "unlabeled_batch", "device")},
        "source": SOURCE,
        "epochs": 20,
        "tasks": 3,
        "coreset": 6,
    },
    "rows": {"Base": {"method": "base"}, "DM": {"method": "dm"}},
    "columns": {"3 tasks": {}},
}
Round = Callable[[Random, Path], None]
counts: Counter[str] = Counter()


def kill(command: Command, number: signal.Signals) -> None:
    """Send a signal and wait for the end, which it must bring unless all is done."""
    if command.ends_within(0):
        return
    command.send(number)
    counts[number.name] += 1
    codes = (0, -number, 128 + number)  # by the signal itself before a command listens for it
    assert (code := command.wait()) in codes, f"exit code {code} after {number.name}"


def kill_until_done(random: Random, words: list[str], said: Path, seconds: float) -> None:
    """Kill a command at moments up to so many seconds after its start, and let it end."""
    for _ in range(KILLS):
        command = Command(words, said)
        if not command.ends_within(seconds * random.random() * random.random()):
            kill(command, random.choice(SIGNALS))
    assert (code := Command(words, said).wait()) == 0, f"exit code {code}"


def timed(words: list[str], said: Path) -> float:
    """Run a command to its end; return how long it took."""
    begun = time.monotonic()
    assert Command(words, said).wait() == 0, said.read_text()
    return time.monotonic() - begun


def run_rounds(root: Path) -> Round:
    """Return what kills runs."""
    (root / "run.yaml").write_text(yaml.safe_dump(RUN))
    words = ["run", "--config", str(root / "run.yaml"), "--quiet", "--checkpoint-seconds", "0.2"]
    seconds = timed([*words, "--out", str(root / "whole")], root / "said")
    whole = without_times(read_result(root / "whole"))

    def one(random: Random, work: Path) -> None:
        kill_until_done(random, [*words, "--out", str(work / "run")], work / "said", seconds)
        assert without_times(read_result(work / "run")) == whole, "another result"
        assert {path.name for path in (work / "run").iterdir()} == {"result.json", "log.jsonl"}

    return one


def learn_rounds(root: Path) -> Round:
    """Return what kills a learner's second task."""
    make_world(root / "world")
    words = ["--labeled", str(root / "world" / "april"), "--checkpoint-seconds", "0.02"]
    words += ["--unlabeled", str(root / "world" / "camera"), *SMALL, "--epochs", "20"]
    words += ["--test", str(root / "world" / "test")]
    shutil.copytree(root / "world" / "state", root / "whole")
    seconds = timed(["learn", str(root / "whole"), *words], root / "said")
    whole = _learned(root / "whole")

    def one(random: Random, work: Path) -> None:
        shutil.copytree(root / "world" / "state", work / "state")
        kill_until_done(random, ["learn", str(work / "state"), *words], work / "said", seconds)
        assert _learned(work / "state") == whole, "another learner"
        names = {"learner.json", whole["weights"], "report.html"}
        assert {path.name for path in (work / "state").iterdir()} == names, "files are left"

    return one


def _learned(state: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((state / "learner.json").read_text())
    for task in record["learner"]["history"]:
        task["seconds"] = sorted(task["seconds"])
    record["learner"]["snapshot"]["seconds"] = None
    return {**record, "checksum": ""}


def suite_rounds(root: Path, engine: str = "local") -> Round:
    """Return what kills the processes of a suite: those that hand out runs, and their workers."""
    (root / "own.yaml").write_text(yaml.safe_dump(SUITE))
    words = ["suite", "run", str(root / "own.yaml"), "--allow-import", SOURCE]
    words += ["--checkpoint-seconds", "0.05", "--engine", engine]
    words += ["--jobs", "1"] if engine == "local" else []
    at = ["--ledger", str(root / "ledger"), "--work", str(root / "work")]
    seconds = timed([*words, *at], root / "said")
    whole = _ledger(root / "ledger")
    together = 2 if engine == "local" else 1

    def one(random: Random, work: Path) -> None:
        words_here = [*words, "--ledger", str(work / "ledger"), "--work", str(work / "work")]
        for _ in range(KILLS):
            processes = [Command(words_here, work / "said") for _ in range(together)]
            if random.random() < 0.6:
                _kill_a_worker(random, work / "work", processes)
            processes[0].ends_within(seconds * random.random() * random.random())
            for process in processes:
                if random.random() < 0.7:
                    kill(process, random.choice(SIGNALS))
                code = process.wait()
                assert code in (0, 2, 130, 143, -signal.SIGKILL, -signal.SIGTERM), (
                    f"exit code {code}"
                )
        assert (code := Command(words_here, work / "said").wait()) == 0, f"exit code {code}"
        assert _ledger(work / "ledger") == whole, "another result"

    return one


def _kill_a_worker(random: Random, work: Path, drivers: Sequence[Command]) -> None:
    """Kill a process that holds the lock of a run, once there is one."""
    found: list[int] = []
    while not found and not all(driver.ends_within(0) for driver in drivers):
        time.sleep(0.02)
        found = [number for lock in work.glob("*/run.lock") if (number := _holder(lock))]
    if found:
        time.sleep(random.random())
        with contextlib.suppress(ProcessLookupError):
            os.kill(random.choice(found), signal.SIGKILL)
            counts["SIGKILL of a worker"] += 1


def _holder(lock: Path) -> int | None:
    """Return the process that a lock names, if it lives."""
    try:
        number = int(lock.read_text().split()[0])
        os.kill(number, 0)
    except (OSError, ValueError, IndexError):
        return None
    return number


def _ledger(folder: Path) -> list[dict[str, Any]]:
    results = [read_result(path) for path in sorted(folder.rglob("*.json"))]
    return sorted(
        (without_times(one) for one in results), key=lambda one: json.dumps(one["config"])
    )


KINDS: dict[str, Callable[[Path], Round]] = {
    "run": run_rounds,
    "learn": learn_rounds,
    "suite": suite_rounds,
    "ray": lambda root: suite_rounds(root, "ray"),
}


def kill_by_hand() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=sorted(KINDS), default="run")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = PYTHONPATH
    failures = rounds = 0
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "whole").mkdir()
        one = KINDS[given.kind](Path(folder) / "whole")
        end = time.monotonic() + given.seconds
        while time.monotonic() < end:
            work = Path(folder) / str(rounds)
            work.mkdir()
            try:
                one(Random(f"{given.seed}/{rounds}"), work)
            except AssertionError as error:
                failures += 1
                said = work / "said"
                output = said.read_text()[-3000:] if said.exists() else ""
                print(f"round {given.seed}/{rounds}: {error}\n{output}")
            shutil.rmtree(work, ignore_errors=True)
            rounds += 1
    print(f"{given.kind}: {rounds} rounds, {dict(counts)}, {failures} failures", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(kill_by_hand())
