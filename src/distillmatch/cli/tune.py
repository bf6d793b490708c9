"""`distillmatch tune`: choose hyperparameters on folds of the training data, as the paper does."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from distillmatch.cli.options import (
    MethodParser,
    add_run_options,
    allowed_imports,
    at_least,
    config_from,
)
from distillmatch.cli.parser import Commands, add_command, option
from distillmatch.cli.queue import (
    add_engine_options,
    check_engine_options,
    do_runs,
    with_absolute_locations,
)
from distillmatch.config import RunConfig
from distillmatch.terminal import plain_console, tell

if TYPE_CHECKING:
    from distillmatch.runs.side_by_side import Job

PICTURE = "tuning.png"
SHOWN = 10
"""Trials in the table; all of them are in the record."""


def add_parser(commands: Commands) -> None:
    """Describe the command."""
    parser = add_command(
        commands,
        "tune",
        "choose hyperparameters by validation, without any test data",
        MethodParser,
        examples=(
            "tune --method gd --tasks 5 --epochs 12 --space learning_rate=0.03,0.1,0.2",
            "tune --source cifar100 --search grid --runs-per-gpu 3",
        ),
    )
    group = parser.add_argument_group("search")
    said = "folder of best.yaml, trials.json, the picture and the runs"
    option(group, "--out DIR", said, Path, Path("tuning"))
    said = "one hyperparameter after the other, or all combinations"
    option(group, "--search coordinate|grid", said, default="coordinate")
    said = "values to choose from, or one YAML file of them (default: the paper's)"
    option(group, "--space NAME=X,X ...", said)
    group = parser.add_argument_group("validation")
    option(group, "--folds N", "folds of the labels", at_least(2), 3)
    said = "tasks that are learned, from the first (default: half of them)"
    option(group, "--validation-tasks N", said, at_least(1))
    said = "figure of the held-out images that decides"
    option(group, "--metric A_N|bwt|fgt", said, default="A_N", choices=("A_N", "bwt", "fgt"))
    add_engine_options(parser)
    add_run_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Search, and write the best configuration, the record of all trials and the picture."""
    from distillmatch.report.plots import draw_tuning, require_matplotlib
    from distillmatch.suite.space import paper_space, parse_space
    from distillmatch.suite.tuning import BEST, Selection, Tuning

    require_matplotlib()
    config = with_absolute_locations(config_from(arguments, RunConfig))
    check_engine_options(arguments, [config])
    allowed = allowed_imports(arguments)
    space = (
        parse_space(arguments.space, config, allowed) if arguments.space else paper_space(config)
    )
    selection = Selection(
        search=arguments.search,
        folds=arguments.folds,
        tasks=arguments.validation_tasks,
        metric=arguments.metric,
    )
    out: Path = arguments.out.resolve()

    def work(jobs: "Sequence[Job]") -> dict[str, str]:
        queue = do_runs(jobs, out, arguments)
        return {name: queue.entries[name].reason for name in queue.names("failed")}

    record = Tuning(config, out, space, selection, work, tell).run()
    draw_tuning(record, out / PICTURE)
    console = plain_console()
    console.print(_trial_table(record))
    for what, name in (("best configuration", BEST), ("picture", PICTURE)):
        console.print(f"{what}: {arguments.out / name}", highlight=False)


def _trial_table(record: dict[str, Any]) -> Table:
    """Return the table of the best trials, and of those that failed."""
    table = Table(title="trials, mean ± standard deviation over the folds")
    for name in (*record["space"], record["metric"]):
        table.add_column(name.replace("_", " ") if name != "A_N" else name, justify="right")
    for place, trial in enumerate(record["trials"]):
        if trial["failed"] or place < SHOWN:
            figure = "failed"
            if not trial["failed"]:
                figure = f"{trial['mean']:.2f} ± {trial['deviation']:.2f}"
            table.add_row(*(str(value) for value in trial["values"].values()), figure)
    return table
