"""`distillmatch suite`: list the experiments and what of them is done, and run what is missing."""

import argparse
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rich import box
from rich.table import Table

from distillmatch.cli.options import add_allow_import, add_field_option, whole_numbers
from distillmatch.cli.parser import Commands, Parser, add_command
from distillmatch.cli.queue import (
    QueueProgress,
    add_engine_options,
    check_engine_options,
    configs_left,
    describe,
    make_engine,
    refuse_without_gpu,
    with_absolute_locations,
)
from distillmatch.config import LOCATION_KEYS, RunConfig
from distillmatch.config.recipe import RecipeName
from distillmatch.suite.catalogue import (
    Experiment,
    Scale,
    at_scale,
    experiment_names,
    experiments_called,
    load_experiment,
)
from distillmatch.terminal import plain_console, tell

if TYPE_CHECKING:
    from distillmatch.report.cells import TableModel
    from distillmatch.runs.side_by_side import Job
    from distillmatch.suite.queue import Entry, Queue

LEDGERS: dict[str, Path] = {"paper": Path("results"), "quick": Path("runs/quick/results")}
"""Where results are kept by default; small experiments stay out of the real ones."""
RECIPES: dict[Scale, RecipeName] = {"paper": "paper", "quick": "as-written"}
"""The default recipe of each scale. By `paper`, networks learn little in few steps."""
PASSED_ON = (*LOCATION_KEYS, "device", "precision", "resident_bytes")
"""What may differ from machine to machine: given here, it holds for every run."""


def add_parser(commands: Commands) -> None:
    """Describe the command and its parts."""
    parser = add_command(commands, "suite", "list and run the experiments of the paper and ours")
    parts = parser.add_subparsers(
        dest="part", required=True, metavar="list|run", parser_class=Parser
    )
    listing = add_command(
        parts,
        "list",
        "show the experiments, or the cells of one, and what of them is done",
        examples=("suite list", "suite list table-2a", "suite list own.yaml --ledger results"),
    )
    listing.usage = "%(prog)s [NAME] [options]"
    listing.add_argument(
        "experiment",
        nargs="?",
        metavar="NAME",
        help="an experiment, the paper's number of a table or figure, or your own YAML file",
    )
    add_suite_options(listing)
    listing.set_defaults(run=run_list)
    running = add_command(
        parts,
        "run",
        "run what the ledger does not have yet, and show the tables",
        examples=(
            "suite run table-2a --scale quick",
            "suite run table-4a --seeds 0 --dry-run",
            "suite run table-2c --methods dm,gd --cell /Positive --runs-per-gpu 3",
        ),
    )
    running.usage = "%(prog)s NAME [NAME ...] [options]"
    _add_run_options(running)
    running.set_defaults(run=run)


def _add_run_options(parser: Parser) -> None:
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="experiments, the paper's numbers of tables and figures, or your own YAML files",
    )
    group = parser.add_argument_group("which runs")
    group.add_argument(
        "--methods", metavar="NAME,…", help="only these methods, and the bounds they need"
    )
    group.add_argument(
        "--cell",
        action="append",
        dest="cells",
        metavar="ROW|/COLUMN|ROW/COLUMN",
        help="only this cell, row or column, and the bounds it needs; repeatable",
    )
    group.add_argument(
        "--without-bounds",
        action="store_true",
        help="skip bounds that are not asked for; Ω then needs them from the ledger",
    )
    group.add_argument(
        "--in-order",
        action="store_true",
        help="run in the order given, bounds first, instead of the longest runs first",
    )
    group.add_argument("--dry-run", action="store_true", help="only list what would be run")
    add_suite_options(parser)
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder of the runs; processes with the same one share the work (default: runs)",
    )
    add_engine_options(parser)
    group = parser.add_argument_group("passed on to every run")
    for name in PASSED_ON:
        add_field_option(group, RunConfig, name)


def add_suite_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which runs of an experiment are meant, and where their results are."""
    add_seeds_option(parser)
    parser.add_argument(
        "--recipe",
        choices=get_args(RecipeName),
        metavar="|".join(get_args(RecipeName)),
        help="how the methods are computed where the paper's words and its published figures "
        "differ (default: paper; with --scale quick as-written, which learns in fewer steps)",
    )
    add_allow_import(parser)
    add_ledger_options(parser)


def add_seeds_option(parser: argparse.ArgumentParser) -> None:
    """Add `--seeds` of experiments."""
    parser.add_argument(
        "--seeds", type=whole_numbers, metavar="N,N,…", help="seeds (default: the experiment's)"
    )


def add_ledger_options(parser: argparse.ArgumentParser) -> None:
    """Add the scale of experiments and the folder of their results."""
    parser.add_argument(
        "--scale",
        choices=get_args(Scale),
        default="paper",
        metavar="paper|quick",
        help="experiments as in the paper, or small ones on the embedded data (default: paper)",
    )
    parser.add_argument(
        "--ledger",
        type=Path,
        metavar="DIR",
        help=f"folder of results (default: {LEDGERS['paper']}; with --scale quick "
        f"{LEDGERS['quick']})",
    )


def ledger_folder(arguments: argparse.Namespace) -> Path:
    """Return the folder of results that the options name."""
    given: Path | None = arguments.ledger
    return given or LEDGERS[arguments.scale]


def chosen_experiments(
    names: Sequence[str],
    scale: Scale,
    recipe: RecipeName | None = None,
    allow_import: Collection[str] = (),
) -> list[Experiment]:
    """Return the experiments of these names or files; without any, the paper's and then ours."""
    recipe = recipe or RECIPES[scale]
    single = dict.fromkeys(part for name in names for part in experiments_called(name))
    chosen = [
        at_scale(load_experiment(name, recipe, allow_import), scale)
        for name in single or experiment_names()
    ]
    return chosen if names else sorted(chosen, key=lambda one: (one.beyond_paper, _place(one)))


def _place(experiment: Experiment) -> tuple[str, str]:
    """Return what sorts experiments as the paper does: tables, then figures."""
    return "" if experiment.kind == "table" else "~", experiment.source


def run_list(arguments: argparse.Namespace) -> None:
    """List the experiments, or the cells of those that are named."""
    if arguments.experiment is None:
        _list_all(arguments)
    else:
        _list_cells(arguments)


def _list_all(arguments: argparse.Namespace) -> None:
    from distillmatch.suite.ledger import Ledger
    from distillmatch.suite.plan import plan

    ledger = Ledger(ledger_folder(arguments))
    experiments = chosen_experiments((), arguments.scale, arguments.recipe)
    planned = plan(experiments, arguments.seeds)
    done = {run.name for run in planned if ledger.find(run.config) is not None}
    table = _table("experiment", "in the paper", "what")
    for name in ("runs", "done"):
        table.add_column(name, justify="right")
    ours = {experiment.name for experiment in experiments if experiment.beyond_paper}
    for experiment in experiments:
        runs = {run.name for run in planned if experiment.name in run.experiments}
        where = "" if experiment.name in ours else _where(experiment)
        counts = str(len(runs)), str(len(runs & done))
        table.add_row(experiment.name, where, experiment.title, *counts)
    for column in table.columns[:2]:
        column.no_wrap = True
    paper = {run.name for run in planned if not ours.issuperset(run.experiments)}
    console = plain_console(highlight=False)
    console.print(table)
    console.print(
        f"Runs that experiments share counted once: {len(paper)} for the paper, "
        f"{len(paper & done)} done; {len(planned)} with ours, {len(done)} done.\n"
        f"Results are in {ledger.folder}. The paper's numbers are names too, such as table-4a.",
        soft_wrap=True,
    )


def _table(*columns: str, title: str | None = None, caption: str | None = None) -> Table:
    """Return a table in which long words are folded."""
    table = Table(
        title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _where(experiment: Experiment) -> str:
    """Return the place in the paper in short: `Tables 6a–6d`."""
    place = re.split("[;,] (?=[^0-9])", experiment.source)[0]
    return re.sub(r"(\d\w)(?:, \w+)*, (\w+)$", r"\1–\2", place)


def _list_cells(arguments: argparse.Namespace) -> None:
    from distillmatch.report.cells import Results, table_of
    from distillmatch.suite.ledger import Ledger
    from distillmatch.suite.plan import plan

    ledger = Ledger(ledger_folder(arguments))
    results = Results(ledger)
    console = plain_console(highlight=False, soft_wrap=True)
    for experiment in chosen_experiments(
        [arguments.experiment], arguments.scale, arguments.recipe, arguments.allow_import
    ):
        print_cells(table_of(experiment, results, arguments.seeds or ()))
        for line in filter(None, (experiment.source, experiment.note)):
            console.print(line)
        planned = plan([experiment], arguments.seeds)
        missing = [run.name for run in planned if results.find(run.config) is None]
        end = ":" if missing else "."
        console.print(f"{len(missing)} of {len(planned)} runs are missing in {ledger.folder}{end}")
        for name in missing:
            console.print(f"  {name}")


def print_cells(model: "TableModel", names: Collection[str] | None = None) -> None:
    """Print the cells of an experiment, or only those of these names."""
    from distillmatch.report.cells import METRICS, published_shown, shown

    experiment = model.experiment
    compared = any(cell.published for cell in experiment.cells)
    between = " | " if len(experiment.metrics) < 3 else "\n"
    caption = "mean ± standard deviation over seeds"
    if compared:
        caption += f"; published {'|' if between == ' | ' else 'above'} ours"
    if any(row.archived for row in model.rows):
        caption += "; †: an archived run of the nearest preset"
    table = _table("row", "column", title=experiment.title, caption=caption)
    for metric in experiment.metrics:
        table.add_column(METRICS[metric], justify="right")
    table.add_column("seeds", justify="right")
    for row in model.rows:
        if names is not None and row.cell.name not in names:
            continue
        figures = [
            between.join((published_shown(figure), shown(figure))) if compared else shown(figure)
            for figure in row.figures.values()
        ]
        done = f"{len(row.runs)} of {len(row.seeds)}"
        table.add_row(row.cell.row, row.cell.column, *figures, done)
    plain_console(highlight=False).print(table)


def run(arguments: argparse.Namespace) -> None:
    """Work off the queue and print the tables; the code is 1 if runs failed."""
    from distillmatch.runs import Interrupted
    from distillmatch.runs.lock import excludes
    from distillmatch.runs.side_by_side import Job
    from distillmatch.suite.ledger import Ledger
    from distillmatch.suite.plan import chosen_cells, plan
    from distillmatch.suite.queue import Queue

    check_engine_options(arguments)
    work: Path = arguments.work.resolve()
    experiments = chosen_experiments(
        arguments.names, arguments.scale, arguments.recipe, arguments.allow_import
    )
    methods = None if arguments.methods is None else arguments.methods.split(",")
    cells = arguments.cells
    changes = {key: value for key, value in vars(arguments).items() if key in PASSED_ON}
    planned = plan(
        experiments, arguments.seeds, methods, cells, bounds=not arguments.without_bounds
    )
    jobs = [
        Job(one.name, with_absolute_locations(one.config.replace(**changes)), work / one.name)
        for one in planned
    ]
    ledger = Ledger(ledger_folder(arguments))
    if arguments.dry_run:
        _print_plan(Queue(jobs, ledger, tell, in_order=arguments.in_order))
        return
    progress = QueueProgress()
    try:
        queue = Queue(jobs, ledger, progress.tell, in_order=arguments.in_order)
        refuse_without_gpu(arguments, configs_left(queue))
        if not queue.over:
            ledger.check_writable()
        if not excludes(work):
            progress.tell(f"{work} is on a file system without locks: start no second process")
        make_engine(arguments, queue, work, progress.show).run()
    except Interrupted as stop:
        tell(str(stop))
        raise SystemExit(stop.exit_code) from None
    finally:
        progress.stop()
    from distillmatch.report.cells import Results, table_of

    results = Results(ledger)
    for experiment in experiments:
        names = {cell.name for cell in chosen_cells(experiment, methods, cells)}
        if names:
            print_cells(table_of(experiment, results, arguments.seeds or ()), names)
    _report(queue, ledger.folder, work)


def _print_plan(queue: "Queue") -> None:
    table = _table("run", "method", "state")
    for name, entry in queue.entries.items():
        table.add_row(name, entry.job.config.method, _standing(entry))
    console = plain_console(highlight=False)
    console.print(table)
    console.print(f"{describe(queue)}, {queue.count('waiting')} to run")


def _standing(entry: "Entry") -> str:
    if entry.state == "done":
        return "in the ledger"
    if entry.state == "elsewhere":
        return "running in another process"
    begun = any((entry.job.out / name).exists() for name in ("checkpoints", "stages"))
    return f"to continue, {100 * entry.share:.0f} % of its tasks done" if begun else "to run"


def _report(queue: "Queue", ledger: Path, work: Path) -> None:
    """Print how it ended, with one sentence for runs that failed alike."""
    from distillmatch.suite.queue import error_file

    console = plain_console(highlight=False, soft_wrap=True)
    console.print(f"{describe(queue)}; results are in {ledger}")
    failed: dict[str, list[Job]] = {}
    for name in queue.names("failed"):
        entry = queue.entries[name]
        failed.setdefault(entry.reason, []).append(entry.job)
    for reason, jobs in failed.items():
        where = error_file(jobs[0])
        see = where if len(jobs) == 1 else f"{where.name} in each one's folder under {work}"
        console.print(f"failed: {', '.join(job.name for job in jobs)}: {reason} (see {see})")
    if failed:
        raise SystemExit(1)
