"""`distillmatch run`: learn a stream by a method and write the result."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from distillmatch.cli.options import add_config_options, config_from
from distillmatch.cli.progress import LiveProgress
from distillmatch.config import RunConfig


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe the command."""
    parser = commands.add_parser("run", help="learn a stream and write the result")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for result.json"
    )
    parser.add_argument(
        "--bound",
        type=Path,
        metavar="RESULT",
        help="result of method offline on the same stream, by which Ω is computed",
    )
    parser.add_argument(
        "--resume",
        choices=("no", "auto", "must"),
        default="auto",
        help="a run that DIR holds: no starts over, auto continues it, must also refuses to start "
        "where there is none (default: auto)",
    )
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=60.0,
        metavar="X",
        help="write a checkpoint so often within a task; 0: only after each (default: 60)",
    )
    parser.add_argument("--no-table", action="store_true", help="print no table at the end")
    parser.add_argument("--quiet", action="store_true", help="show no progress and no table")
    add_config_options(parser, RunConfig)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the configuration that the options describe."""
    from distillmatch.report.comparison import comparison_table, task_table
    from distillmatch.run import Interrupted, bound_of, read_result
    from distillmatch.run import run as run_config

    config = config_from(arguments, RunConfig)
    bound = bound_of(read_result(arguments.bound)) if arguments.bound else None
    progress = None if arguments.quiet else LiveProgress(config.method)
    try:
        result = run_config(
            config,
            arguments.out,
            bound=bound,
            progress=progress,
            resume=arguments.resume,
            checkpoint_seconds=arguments.checkpoint_seconds,
            tell=_tell,
        )
    except Interrupted as stop:
        _tell(str(stop))
        raise SystemExit(stop.exit_code) from None
    finally:
        if progress is not None:
            progress.stop()
    if not (arguments.quiet or arguments.no_table):
        console = Console()
        console.print(task_table(result))
        console.print(comparison_table([result]))
        console.print(f"result: {arguments.out / 'result.json'}", markup=False, highlight=False)


def _tell(sentence: str) -> None:
    print(f"distillmatch: {sentence}", file=sys.stderr, flush=True)
