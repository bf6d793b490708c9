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
from distillmatch.cli.parser import Commands, add_command
from distillmatch.cli.queue import (
    QueueProgress,
    add_engine_options,
    check_engine_options,
    make_engine,
    refuse_without_gpu,
    with_absolute_locations,
)
from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.terminal import plain_console, tell

if TYPE_CHECKING:
    from distillmatch.runs.side_by_side import Job
    from distillmatch.suite.tuning import Work

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
            "tune --source cifar100 --search tpe --trials 40 --runs-per-gpu 3",
        ),
    )
    group = parser.add_argument_group("search")
    group.add_argument(
        "--out",
        type=Path,
        default=Path("tuning"),
        metavar="DIR",
        help="folder of best.yaml, trials.json, the picture and the runs (default: tuning)",
    )
    group.add_argument(
        "--search",
        choices=("coordinate", "grid", "random", "tpe"),
        default="coordinate",
        metavar="coordinate|grid|random|tpe",
        help="one hyperparameter after the other, all combinations, or drawn by Optuna "
        "(default: coordinate)",
    )
    group.add_argument(
        "--space",
        nargs="+",
        metavar="NAME=X,X",
        help="values to choose from, or one YAML file of them (default: the paper's)",
    )
    group.add_argument(
        "--trials", type=at_least(1), metavar="N", help="trials of random and tpe (default: 30)"
    )
    group.add_argument(
        "--together",
        type=at_least(1),
        metavar="N",
        help="trials that random and tpe propose at a time (default: 3)",
    )
    group = parser.add_argument_group("validation")
    group.add_argument(
        "--folds", type=at_least(2), default=3, metavar="N", help="folds of the labels (default: 3)"
    )
    group.add_argument(
        "--validation-tasks",
        type=at_least(1),
        metavar="N",
        help="tasks that are learned, from the first (default: half of them)",
    )
    group.add_argument(
        "--metric",
        choices=("A_N", "bwt", "fgt"),
        default="A_N",
        metavar="A_N|bwt|fgt",
        help="figure of the held-out images that decides (default: A_N)",
    )
    add_engine_options(parser)
    add_run_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Search, and write the best configuration, the record of all trials and the picture."""
    from distillmatch.report.plots import draw_tuning, require_matplotlib
    from distillmatch.runs import Interrupted
    from distillmatch.suite.space import paper_space, parse_space
    from distillmatch.suite.tuning import BEST, Selection, Tuning

    drawn = _drawn(arguments)
    require_matplotlib()
    check_engine_options(arguments)
    config = with_absolute_locations(config_from(arguments, RunConfig))
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
    """Return the table of the best trials, and of those that failed."""
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
    """Return the options of drawn trials; refuse them for searches that draw none."""
    from distillmatch.suite.search import DRAWING

    names = ("trials", "together")
    drawn = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if drawn and arguments.search not in DRAWING:
        raise ConfigError(
            f"--{next(iter(drawn))} goes with --search {' or '.join(DRAWING)} only, "
            f"not {arguments.search}"
        )
    return drawn


def _work(arguments: argparse.Namespace, out: Path) -> "Work":
    """Return a function that does runs on the engine that the options describe."""
    from distillmatch.suite.queue import Queue

    def work(jobs: "Sequence[Job]") -> dict[str, str]:
        progress = QueueProgress()
        try:
            queue = Queue(jobs, None, progress.tell)
            make_engine(arguments, queue, out, progress.show).run()
        finally:
            progress.stop()
        return {name: queue.entries[name].reason for name in queue.names("failed")}

    return work
