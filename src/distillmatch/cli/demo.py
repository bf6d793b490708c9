"""`distillmatch demo`: the paper in miniature, on the embedded data, in about a minute."""

import argparse
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from queue import Empty
from typing import Any

from rich.console import Console

from distillmatch.config import RunConfig
from distillmatch.errors import LockedError, RunFolderError
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
    from distillmatch.report.comparison import comparison_table, draw_comparison
    from distillmatch.report.demo_page import write_demo_page
    from distillmatch.run import read_result

    out: Path = arguments.out
    configs = [RunConfig(**SETTINGS, method=method) for method in METHODS]
    dataset = load_source(configs[0])
    draw_stream(dataset, build_stream(dataset, configs[0]), out / "stream.png")
    _train(configs, out)
    results = [read_result(out / config.method) for config in configs]
    console = Console()
    console.print(comparison_table(results))
    draw_comparison(results, out / "accuracy.png")
    page = write_demo_page(results, out)
    console.print(f"Open {page}", markup=False, highlight=False)


def _train(configs: list[RunConfig], out: Path) -> None:
    """Run the configurations, as many side by side as there are cores, and show progress."""
    from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn

    # Forked processes would share torch's threads; new ones start clean.
    context = multiprocessing.get_context("spawn")
    workers = min(len(configs), os.cpu_count() or 1)
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn())
    with (
        context.Manager() as manager,
        ProcessPoolExecutor(workers, mp_context=context) as pool,
        Progress(*columns, console=console, disable=not console.is_terminal) as bars,
    ):
        news = manager.Queue()
        rows = {c.method: bars.add_task(c.method, total=None) for c in configs}
        futures = [pool.submit(_run_one, config, out / config.method, news) for config in configs]
        while not all(future.done() for future in futures) or not news.empty():
            try:
                method, total, done = news.get(timeout=0.2)
            except Empty:
                continue
            bars.update(rows[method], total=total, completed=done)
        for future in futures:
            future.result()


def _run_one(config: RunConfig, out: Path, news: Any) -> None:
    """Run one configuration in a process of its own, on one thread."""
    import torch

    from distillmatch.run import run as run_config

    torch.set_num_threads(1)
    reporter = _Reporter(config.method, news)
    try:
        run_config(config, out, progress=reporter, tell=lambda sentence: None)
    except LockedError:
        raise
    except RunFolderError:
        # The folder holds a demo of another version, with other settings.
        run_config(config, out, progress=reporter, resume="no")


class _Reporter:
    """Sends progress to the process that shows it."""

    def __init__(self, method: str, news: Any) -> None:
        self.method = method
        self.news = news
        self.total = self.done = 0.0

    def start(self, total: float) -> None:
        """Begin to show."""
        self.total = total

    def advance(self, done: float, doing: str) -> None:
        """Add finished work."""
        self.done += done
        self.news.put((self.method, self.total, self.done))

    def stop(self) -> None:
        """Have nothing to end."""
