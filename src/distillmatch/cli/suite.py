"""`distillmatch suite`: list the experiments and what of them is done, and run what is missing."""

import argparse
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from distillmatch.cli.options import add_allow_import, add_field_option, whole_numbers
from distillmatch.cli.parser import Commands, Parser, add_command, option
from distillmatch.cli.queue import (
    add_engine_options,
    check_engine_options,
    describe,
    do_runs,
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
    from distillmatch.suite.queue import Entry, Queue

LEDGERS: dict[str, Path] = {"paper": Path("results"), "quick": Path("runs/quick/results")}
"""Where results are kept by default; small experiments stay out of the real ones."""
RECIPES: dict[Scale, RecipeName] = {"paper": "paper", "quick": "as-written"}
"""The default recipe of each scale. By `paper`, networks learn little in few steps."""
PASSED_ON = (*LOCATION_KEYS, "device", "precision", "resident_bytes")
"""What may differ from machine to machine: given here, it holds for every run."""
NAMES = "experiments, the paper's numbers of tables and figures, or your own YAML files"


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
    said = "an experiment, the paper's number of a table or figure, or your own YAML file"
    option(listing, "experiment NAME", said, nargs="?")
    _add_suite_options(listing)
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
    option(parser, "names NAME ...", NAMES)
    group = parser.add_argument_group("which runs")
    option(group, "--methods NAME,…", "only these methods, and the bounds they need")
    said = "only this cell, row or column, and the bounds it needs; repeatable"
    option(group, "--cell ROW|/COLUMN|ROW/COLUMN", said, action="append", dest="cells")
    said = "skip bounds that are not asked for; Ω then needs them from the ledger"
    option(group, "--without-bounds", said)
    said = "run in the order given, bounds first, instead of the longest runs first"
    option(group, "--in-order", said)
    option(group, "--dry-run", "only list what would be run")
    _add_suite_options(parser)
    said = "folder of the runs; processes with the same one share the work"
    option(parser, "--work DIR", said, Path, Path("runs"))
    add_engine_options(parser)
    group = parser.add_argument_group("passed on to every run")
    for name in PASSED_ON:
        add_field_option(group, RunConfig, name)


def _add_suite_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which runs of an experiment are meant, and where their results are."""
    add_seeds_option(parser)
    said = (
        "how the methods are computed where the paper's words and its published figures differ "
        "(default: paper; with --scale quick as-written, which learns in fewer steps)"
    )
    option(parser, "--recipe paper|as-written", said)
    add_allow_import(parser)
    add_ledger_options(parser)


def add_seeds_option(parser: argparse.ArgumentParser) -> None:
    """Add `--seeds` of experiments."""
    option(parser, "--seeds N,N,…", "seeds (default: the experiment's)", whole_numbers)


def add_ledger_options(parser: argparse.ArgumentParser) -> None:
    """Add the scale of experiments and the folder of their results."""
    said = "experiments as in the paper, or small ones on the embedded data"
    option(parser, "--scale paper|quick", said, default="paper")
    said = f"folder of results (default: {LEDGERS['paper']}; with --scale quick {LEDGERS['quick']})"
    option(parser, "--ledger DIR", said, Path)


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
    if not names:  # as in the paper: tables, then figures
        chosen.sort(key=lambda one: (one.beyond_paper, one.kind == "figure", one.source))
    return chosen


def run_list(arguments: argparse.Namespace) -> None:
    """List the experiments, or the cells of the one that is named."""
    from distillmatch.suite.ledger import Ledger
    from distillmatch.suite.plan import plan

    ledger = Ledger(ledger_folder(arguments))
    names = [] if arguments.experiment is None else [arguments.experiment]
    experiments = chosen_experiments(
        names, arguments.scale, arguments.recipe, arguments.allow_import
    )
    planned = plan(experiments, arguments.seeds)
    done = {run.name for run in planned if ledger.find(run.config) is not None}
    console = plain_console(highlight=False)
    if names:
        print_tables(experiments, ledger_folder(arguments), arguments.seeds)
        missing = [run.name for run in planned if run.name not in done]
        end = ":" if missing else "."
        lines = [line for one in experiments for line in (one.source, one.note) if line]
        lines.append(f"{len(missing)} of {len(planned)} runs are missing in {ledger.folder}{end}")
        for line in (*lines, *(f"  {name}" for name in missing)):
            console.print(line, soft_wrap=True)
        return
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


def print_tables(
    experiments: Sequence[Experiment],
    ledger: Path,
    seeds: Sequence[int] | None,
    methods: Collection[str] | None = None,
    cells: Sequence[str] | None = None,
) -> None:
    """Print the cells of experiments, or only those of these methods and names."""
    from distillmatch.report.cells import Results, table_of
    from distillmatch.suite.ledger import Ledger
    from distillmatch.suite.plan import chosen_cells

    results = Results(Ledger(ledger))
    for experiment in experiments:
        names = {cell.name for cell in chosen_cells(experiment, methods, cells)}
        if names:
            table = _table_of_cells(table_of(experiment, results, seeds or ()), names)
            plain_console(highlight=False).print(table)


def _table_of_cells(model: "TableModel", names: Collection[str]) -> Table:
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
    for metric in (*(METRICS[one] for one in experiment.metrics), "seeds"):
        table.add_column(metric, justify="right")
    for row in model.rows:
        if row.cell.name in names:
            figures = [
                between.join([published_shown(one)] * compared + [shown(one)])
                for one in row.figures.values()
            ]
            done = f"{len(row.runs)} of {len(row.seeds)}"
            table.add_row(row.cell.row, row.cell.column, *figures, done)
    return table


def run(arguments: argparse.Namespace) -> None:
    """Work off the queue and print the tables; the code is 1 if runs failed."""
    from distillmatch.runs.side_by_side import Job
    from distillmatch.suite.ledger import Ledger
    from distillmatch.suite.plan import plan
    from distillmatch.suite.queue import Queue

    work: Path = arguments.work.resolve()
    experiments = chosen_experiments(
        arguments.names, arguments.scale, arguments.recipe, arguments.allow_import
    )
    methods = None if arguments.methods is None else arguments.methods.split(",")
    bounds = not arguments.without_bounds
    planned = plan(experiments, arguments.seeds, methods, arguments.cells, bounds=bounds)
    changes = {key: value for key, value in vars(arguments).items() if key in PASSED_ON}
    jobs = [
        Job(one.name, with_absolute_locations(one.config.replace(**changes)), work / one.name)
        for one in planned
    ]
    check_engine_options(arguments, [job.config for job in jobs])
    ledger = Ledger(ledger_folder(arguments))
    if arguments.dry_run:
        _print_plan(Queue(jobs, ledger, tell, in_order=arguments.in_order))
        return
    ledger.check_writable()
    queue = do_runs(jobs, work, arguments, ledger, arguments.in_order)
    print_tables(experiments, ledger.folder, arguments.seeds, methods, arguments.cells)
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
    failed: dict[str, list[Path]] = {}
    for name in queue.names("failed"):
        entry = queue.entries[name]
        failed.setdefault(entry.reason, []).append(error_file(entry.job))
    for reason, files in failed.items():
        names = ", ".join(file.parent.name for file in files)
        see = files[0] if len(files) == 1 else f"{files[0].name} in each one's folder under {work}"
        console.print(f"failed: {names}: {reason} (see {see})")
    if failed:
        raise SystemExit(1)
