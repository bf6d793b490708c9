"""`distillmatch tune`: choose hyperparameters on folds of the training data, as the paper does."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from distillmatch.cli.engines import (
    add_engine_options,
    check_engine_options,
    make_engine,
    refuse_without_gpu,
    with_absolute_locations,
)
from distillmatch.cli.options import Commands, add_command, allowed_imports
from distillmatch.cli.run_options import MethodParser, add_run_options, run_config_from
from distillmatch.cli.suite_progress import SuiteProgress
from distillmatch.errors import ConfigError
from distillmatch.terminal import plain_console, tell

if TYPE_CHECKING:
    from distillmatch.runs.side_by_side import Job
    from distillmatch.suite.tuning import Work

DRAWING = ("random", "tpe")
"""The searches that draw as many trials as they are told."""
PICTURE = "tuning.png"
SHOWN = 10
"""Trials in the table; all of them are in the record."""


def add_parser(commands: Commands) -> None:
    """Describe the command."""
    parser = add_command(
        commands, "tune", MethodParser, help="choose hyperparameters without any test data"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for best.yaml, trials.json, the picture and the runs",
    )
    parser.add_argument(
        "--search",
        choices=("coordinate", "grid", "random", "tpe"),
        default="coordinate",
        help="one hyperparameter after the other, every combination, or as Optuna draws them "
        "(default: coordinate)",
    )
    parser.add_argument(
        "--space",
        nargs="+",
        metavar="NAME=X,X",
        help="values to choose from, or one YAML file of them (default: the paper's)",
    )
    parser.add_argument("--trials", type=int, metavar="N", help="of random and tpe (default: 30)")
    parser.add_argument(
        "--together",
        type=int,
        metavar="N",
        help="trials that random and tpe propose at a time (default: 3)",
    )
    parser.add_argument(
        "--folds", type=int, default=3, metavar="N", help="parts of the labels (default: 3)"
    )
    parser.add_argument(
        "--validation-tasks",
        type=int,
        metavar="N",
        help="tasks that are learned, from the first (default: half of them)",
    )
    parser.add_argument(
        "--metric",
        choices=("A_N", "bwt", "fgt"),
        default="A_N",
        help="what the held-out images decide by (default: A_N)",
    )
    add_engine_options(parser)
    add_run_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Search, and write the best configuration, the record of all trials and the picture."""
    from distillmatch.report.comparison import require_matplotlib
    from distillmatch.report.tuning_picture import draw_tuning
    from distillmatch.runs import Interrupted
    from distillmatch.suite.space import paper_space, parse_space
    from distillmatch.suite.tuning import BEST, Selection, Tuning

    drawn = _drawn(arguments)
    require_matplotlib()
    check_engine_options(arguments)
    config = with_absolute_locations(run_config_from(arguments))
    refuse_without_gpu(arguments, [config])
    space = (
        parse_space(arguments.space, config, allowed_imports(arguments))
        if arguments.space
        else paper_space(config)
    )
    selection = Selection(
        search=arguments.search,
        folds=arguments.folds,
        tasks=arguments.validation_tasks,
        metric=arguments.metric,
        **drawn,
    )
    out: Path = arguments.out.resolve()
    try:
        record = Tuning(config, out, space, selection, _work(arguments, out), tell).run()
    except Interrupted as stop:
        tell(str(stop))
        raise SystemExit(stop.exit_code) from None
    draw_tuning(record, out / PICTURE)
    console = plain_console()
    console.print(trial_table(record))
    for what, name in (("best configuration", BEST), ("picture", PICTURE)):
        console.print(f"{what}: {arguments.out / name}", highlight=False)


def trial_table(record: dict[str, Any]) -> Table:
    """Return the best trials, and those that failed."""
    trials = record["trials"]
    table = Table(title="trials, mean ± standard deviation over the folds")
    for name in (*record["space"], record["metric"]):
        table.add_column(name.replace("_", " ") if name != "A_N" else name, justify="right")
    for place, trial in enumerate(trials):
        if trial["failed"]:
            figure = "failed"
        elif place < SHOWN:
            figure = f"{trial['mean']:.2f} ± {trial['deviation']:.2f}"
        else:
            continue
        table.add_row(*(str(value) for value in trial["values"].values()), figure)
    return table


def _drawn(arguments: argparse.Namespace) -> dict[str, int]:
    """Return what was said about trials that are drawn; refuse it where none are."""
    names = ("trials", "together")
    drawn = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if drawn and arguments.search not in DRAWING:
        raise ConfigError(
            f"--{next(iter(drawn))} goes with --search {' or '.join(DRAWING)} only, "
            f"not {arguments.search}"
        )
    return drawn


def _work(arguments: argparse.Namespace, out: Path) -> "Work":
    """Return what does runs: a queue of them on the engine that the options describe."""
    from distillmatch.suite.queue import Queue

    def work(jobs: "Sequence[Job]") -> dict[str, str]:
        progress = SuiteProgress()
        try:
            queue = Queue(jobs, None, progress.tell)
            make_engine(arguments, queue, out, progress.show).run()
        finally:
            progress.stop()
        return {name: queue.entries[name].reason for name in queue.names("failed")}

    return work
