"""`distillmatch suite`: the experiments, what of them is done, and running them."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from distillmatch.cli import suite_run
from distillmatch.cli.options import Commands, Parser
from distillmatch.cli.suite_options import add_suite_options, chosen_experiments, ledger_folder
from distillmatch.terminal import plain_console

if TYPE_CHECKING:
    from distillmatch.suite.catalogue import Experiment
    from distillmatch.suite.plan import PlannedRun


def add_parser(commands: Commands) -> None:
    """Describe the command and its parts."""
    parser = commands.add_parser(
        "suite", help="the paper's experiments and ours: list and run them"
    )
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART", parser_class=Parser)
    listing = parts.add_parser("list", help="show the experiments and what of them is done")
    listing.add_argument(
        "experiment",
        nargs="?",
        metavar="NAME",
        help="show the cells of this experiment: a name, or your own YAML file",
    )
    add_suite_options(listing)
    listing.set_defaults(run=run_list)
    suite_run.add_run_parser(parts)


def run_list(arguments: argparse.Namespace) -> None:
    """List the experiments, or the cells of one."""
    if arguments.experiment is None:
        _list_all(arguments)
    else:
        _list_cells(arguments)


def _list_all(arguments: argparse.Namespace) -> None:
    from distillmatch.suite.ledger import Ledger
    from distillmatch.suite.plan import plan

    ledger = Ledger(ledger_folder(arguments))
    experiments = chosen_experiments((), arguments.scale, arguments.recipe)
    everything = plan(experiments, arguments.seeds)
    done = {run.name for run in everything if ledger.find(run.config) is not None}
    table = Table(caption=f"ledger: {ledger.folder}; a run that several share is counted in each")
    for name in ("experiment", "in the paper", "what"):
        table.add_column(name)
    for name in ("cells", "runs", "done"):
        table.add_column(name, justify="right")
    for beyond in (False, True):
        for experiment in experiments:
            if experiment.beyond_paper == beyond:
                runs = _runs_of([experiment], everything)
                table.add_row(
                    experiment.name,
                    experiment.source.partition(";")[0],
                    experiment.title,
                    str(len(experiment.cells)),
                    str(len(runs)),
                    str(len(done & runs)),
                )
        table.add_section()
    paper = _runs_of([one for one in experiments if not one.beyond_paper], everything)
    all_runs = _runs_of(experiments, everything)
    for words, runs in (("the paper, shared runs once", paper), ("with ours", all_runs)):
        table.add_row(words, "", "", "", str(len(runs)), str(len(done & runs)))
    plain_console().print(table)


def _runs_of(experiments: "Sequence[Experiment]", planned: "Sequence[PlannedRun]") -> set[str]:
    """Return the names of the runs that serve one of the experiments."""
    names = {experiment.name for experiment in experiments}
    return {run.name for run in planned if names.intersection(run.experiments)}


def _list_cells(arguments: argparse.Namespace) -> None:
    from distillmatch.report.cells import METRICS, Results, published_shown, shown, table_of
    from distillmatch.suite.ledger import Ledger
    from distillmatch.suite.plan import plan

    ledger = Ledger(ledger_folder(arguments))
    (experiment,) = chosen_experiments(
        [arguments.experiment], arguments.scale, arguments.recipe, arguments.allow_import
    )
    model = table_of(experiment, Results(ledger), arguments.seeds or ())
    compared = any(cell.published for cell in experiment.cells)
    caption = f"{'published | ' if compared else ''}reproduced, mean ± deviation over seeds"
    if any(row.archived for row in model.rows):
        caption += "; †: an archived run of the nearest preset"
    table = Table(title=experiment.title, caption=caption)
    for name in ("row", "column"):
        table.add_column(name, overflow="fold")
    for metric in experiment.metrics:
        table.add_column(METRICS[metric], justify="right")
    table.add_column("seeds done", justify="right")
    for row in model.rows:
        figures = [
            f"{published_shown(figure)} | {shown(figure)}" if compared else shown(figure)
            for figure in row.figures.values()
        ]
        done = f"{len(row.results)} of {len(row.seeds)}"
        table.add_row(row.cell.row, row.cell.column, *figures, done)
    console = plain_console(highlight=False)
    console.print(table)
    for line in (experiment.source, experiment.note):
        console.print(line)
    planned = plan([experiment], arguments.seeds)
    missing = [run.name for run in planned if ledger.find(run.config) is None]
    end = ":" if missing else "."
    console.print(f"{len(missing)} of {len(planned)} runs are missing in {ledger.folder}{end}")
    for name in missing:
        console.print(f"  {name}", soft_wrap=True)
