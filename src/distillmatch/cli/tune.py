"""`distillmatch tune`: choose hyperparameters on folds of the training data, as the paper does."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from rich.table import Table

from distillmatch.cli.options import add_config_options, config_from
from distillmatch.cli.parser import Commands, Parser, add_command, option
from distillmatch.cli.queue import (
    add_engine_options,
    check_engine_options,
    do_runs,
    with_absolute_locations,
)
from distillmatch.config import RunConfig
from distillmatch.config.base import Count, Place
from distillmatch.terminal import make_table, say, show, tell

if TYPE_CHECKING:
    from distillmatch.runs.side_by_side import Job

SHOWN = 10
"""Trials in the table; all of them are in the record."""
Folds = Annotated[int, Field(ge=2)]


def add_parser(commands: Commands) -> Parser:
    """Describe the command."""
    parser = add_command(commands, "tune", run)
    group = parser.add_argument_group("search")
    said = "folder of best.yaml, trials.json, and the runs"
    option(group, "--out DIR", said, Place, Path("tuning"))
    said = "one hyperparameter after the other, or all combinations"
    option(group, "--search", said, Literal["coordinate", "grid"], "coordinate")
    said = "values to choose from (default: the paper's)"
    option(group, "--space NAME=X,X ...", said)
    group = parser.add_argument_group("validation")
    option(group, "--folds N", "folds of the labeled images", Folds, 3)
    said = "tasks that are learned, from the first (default: half of them)"
    option(group, "--validation-tasks N", said, Count)
    add_engine_options(parser)
    add_config_options(parser, RunConfig)
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Choose hyperparameters by validation, without test data.

    distillmatch tune --method gd --tasks 5 --epochs 12 --space learning_rate=0.03,0.1,0.2
    distillmatch tune --source cifar100 --search grid --runs-per-gpu 3
    """
    from distillmatch.suite.tuning import BEST, paper_space, parse_space, tune

    config = with_absolute_locations(config_from(arguments, RunConfig))
    check_engine_options(arguments, [config])
    space = parse_space(arguments.space, config) if arguments.space else paper_space(config)
    out: Path = arguments.out.resolve()

    def work(jobs: "Sequence[Job]") -> dict[str, str]:
        queue = do_runs(jobs, out, arguments)
        return {name: queue.entries[name].reason for name in queue.names("failed")}

    given = {"search": arguments.search, "folds": arguments.folds}
    record = tune(config, out, space, work, tell, tasks=arguments.validation_tasks, **given)
    show(_trial_table(record))
    say(f"best configuration: {arguments.out / BEST}")


def _trial_table(record: dict[str, Any]) -> Table:
    """Return the table of the best trials, and of those that failed."""
    rows = []
    for place, trial in enumerate(record["trials"]):
        failed, mean, deviation = trial["failed"], trial["mean"], trial["deviation"]
        if failed or place < SHOWN:
            figure = "failed" if failed else f"{mean:.2f} ± {deviation:.2f}"
            rows.append((*trial["values"].values(), figure))
    names = [*record["space"], record["metric"]]
    heads = [f">{name.replace('_', ' ') if name != 'A_N' else name}" for name in names]
    return make_table(heads, rows, title="trials, mean ± standard deviation over the folds")
