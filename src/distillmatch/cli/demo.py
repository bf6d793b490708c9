"""`distillmatch demo`: the paper in miniature, on the embedded data, in two minutes at most."""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from distillmatch.config import RunConfig
from distillmatch.errors import TrainingError
from distillmatch.files import write_atomically
from distillmatch.report.stream_picture import draw_stream
from distillmatch.sources import load_source
from distillmatch.streams import build_stream

METHODS = ("dm", "offline", "gd", "base")
"""Longest first, so that two processes end together."""
SETTINGS: dict[str, Any] = {
    "source": "shapes",
    "tasks": 5,
    "unlabeled": "uniform",
    "network": "wrn-10-1",
    "epochs": 12,
    "batch": 32,
    "unlabeled_batch": 64,
    "device": "cpu",
}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe the command."""
    parser = commands.add_parser("demo", help="the paper in miniature: train, compare, report")
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="folder (default: demo)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Draw the stream and its views, train four methods, and write the report."""
    from distillmatch.report.comparison import (
        comparison_table,
        draw_comparison,
        require_matplotlib,
        with_omega,
    )
    from distillmatch.report.demo_page import write_demo_page
    from distillmatch.report.views_sheet import draw_views_of
    from distillmatch.run import read_result

    require_matplotlib()
    out: Path = arguments.out
    configs = [RunConfig(**SETTINGS, method=method) for method in METHODS]
    dataset = load_source(configs[0])
    draw_stream(dataset, build_stream(dataset, configs[0]), out / "stream.png")
    draw_views_of(dataset, configs[0].seed, out / "views.png")
    with Children() as children:
        children.run([(config, out / config.method) for config in configs])
    results = with_omega([read_result(out / config.method) for config in configs])
    results.sort(key=lambda result: -result["metrics"]["A_N"])
    console = Console()
    console.print(comparison_table(results))
    draw_comparison(results, out / "accuracy.png")
    page = write_demo_page(results, out)
    console.print(f"Open {page}", markup=False, highlight=False, soft_wrap=True)


class Children:
    """Runs side by side, each `distillmatch run` in a process of its own, on one thread.

    However the demo is stopped, its runs are asked to stop too; they write checkpoints, and the
    same command goes on from them.
    """

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.relays: list[threading.Thread] = []
        self._before: Any = None

    def __enter__(self) -> "Children":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait()
        for relay in self.relays:
            relay.join()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def run(self, wanted: list[tuple[RunConfig, Path]]) -> None:
        """Run the configurations, as many side by side as there are cores."""
        waiting, limit = list(wanted), os.cpu_count() or 1
        while waiting or self.running:
            while waiting and len(self.running) < limit:
                self._start(*waiting.pop(0))
            time.sleep(0.1)
            for method, process in list(self.running.items()):
                code = process.poll()
                if code is not None:
                    del self.running[method]
                    if code:
                        raise TrainingError(f"the demo's run of {method} ended with code {code}")

    def _start(self, config: RunConfig, out: Path) -> None:
        settings, text = out / "config.yaml", config.to_yaml()
        other = settings.exists() and settings.read_text(encoding="utf-8") != text
        write_atomically(settings, text, "writing the configuration")
        command = [sys.executable, "-m", "distillmatch", "run", "--config", str(settings)]
        command += ["--out", str(out), "--no-table", "--resume", "no" if other else "auto"]
        process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.running[config.method] = process
        relay = threading.Thread(target=_relay, args=(process,), daemon=True)
        relay.start()
        self.relays.append(relay)


def _relay(process: "subprocess.Popen[str]") -> None:
    """Pass on what a run says, line by line, so that two runs do not write into each other."""
    assert process.stderr is not None
    for line in process.stderr:
        print(line, end="", file=sys.stderr, flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
