"""`distillmatch demo`: the paper in miniature on the embedded data, in about two minutes.

`distillmatch demo own` shows a learner for one's own images instead.
"""

import argparse
from pathlib import Path
from typing import Any

from distillmatch.cli.demo_own import run_own
from distillmatch.cli.parser import Commands, add_command, option
from distillmatch.cli.queue import do_runs
from distillmatch.config import RunConfig
from distillmatch.errors import TrainingError
from distillmatch.files import write_atomically
from distillmatch.report.pictures import draw_stream, draw_views_of
from distillmatch.sources import load_source
from distillmatch.streams import build_stream
from distillmatch.terminal import plain_console

RATES = {"dm": 0.1, "offline": 0.2, "gd": 0.2, "base": 0.1}
"""The learning rate of each method, chosen by `distillmatch tune` on two folds of three tasks."""
SETTINGS: dict[str, Any] = {
    "source": "shapes",
    "tasks": 5,
    "unlabeled": "uniform",
    "recipe": "as-written",
    "network": "wrn-10-1",
    "epochs": 12,
    "batch": 32,
    "unlabeled_batch": 64,
    "device": "cpu",
}
"""Steps are few, and by this recipe networks learn in fewer than by `paper`."""


def add_parser(commands: Commands) -> None:
    """Describe the command."""
    said = "show the paper in miniature, or a learner for your own images"
    parser = add_command(commands, "demo", said, examples=("demo", "demo own"))
    said = "three months of a learner for your own images, in under a minute"
    option(parser, "what own", said, nargs="?", choices=("own",))
    option(parser, "--out DIR", "folder (default: demo, or demo-own)", Path)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the demo that was asked for."""
    if arguments.what == "own":
        run_own(arguments.out or Path("demo-own"))
    else:
        run_paper(arguments.out or Path("demo"))


def run_paper(out: Path) -> None:
    """Draw the stream and its views, train the methods, and write the page.

    An interrupted demo is resumed by the same command.
    """
    from distillmatch.report.comparison import comparison_table, with_omega
    from distillmatch.report.pages import write_demo_page
    from distillmatch.runs import read_result
    from distillmatch.runs.log import history, read_log
    from distillmatch.runs.side_by_side import Job
    from distillmatch.suite.queue import error_file

    configs = [
        RunConfig(**SETTINGS, method=method, learning_rate=rate) for method, rate in RATES.items()
    ]
    dataset = load_source(configs[0])
    draw_stream(dataset, build_stream(dataset, configs[0]), out / "stream.png")
    draw_views_of(dataset, configs[0].seed, out / "views.png")
    for config in configs:
        _start_over_if_changed(config, out / config.method)
    queue = do_runs([Job(one.method, one, out / one.method) for one in configs], out)
    for name in queue.names("failed"):
        entry = queue.entries[name]
        raise TrainingError(
            f"the demo's run of {name} failed: {entry.reason}; see {error_file(entry.job)}"
        )
    results = with_omega([read_result(out / config.method) for config in configs])
    results.sort(key=lambda result: -result["metrics"]["A_N"])
    accepted = {
        entry["task"]: entry["examples"]
        for entry in history(read_log(out / "dm"))
        if entry["event"] == "task" and entry.get("examples")
    }
    console = plain_console()
    console.print(comparison_table(results))
    page = write_demo_page(results, dataset, accepted, out)
    console.print(f"Open {page}", highlight=False, soft_wrap=True)


def _start_over_if_changed(config: RunConfig, out: Path) -> None:
    """Write the configuration beside its run, and clear the run of another one."""
    from distillmatch.runs.folder import RunFolder

    settings, text = out / "config.yaml", config.to_yaml()
    if settings.exists() and settings.read_text(encoding="utf-8") != text:
        with RunFolder(out, lambda sentence: None) as folder:
            folder.find("no", config, "")
    write_atomically(settings, text, "writing the configuration")
