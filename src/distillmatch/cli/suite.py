"""`distillmatch suite`: list the experiments and what of them is done, and run what is missing."""

import argparse
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box

from distillmatch.cli.options import LEDGERS, add_common, add_fields
from distillmatch.cli.parser import Commands, Parser, add_command, add_group, option
from distillmatch.cli.queue import (
    add_engine_options,
    check_engine_options,
    describe,
    do_runs,
    with_absolute_locations,
)
from distillmatch.config import LOCATION_KEYS, PLACE_KEYS, RunConfig
from distillmatch.config.base import Place
from distillmatch.config.recipe import RecipeName
from distillmatch.files import check_writable
from distillmatch.suite.catalogue import (
    Experiment,
    Scale,
    at_scale,
    experiment_names,
    experiments_called,
    load_experiment,
)
from distillmatch.terminal import make_table, say, show, tell

if TYPE_CHECKING:
    from distillmatch.suite.ledger import Ledger
    from distillmatch.suite.queue import Queue

RECIPES: dict[Scale, RecipeName] = {"paper": "paper", "quick": "as-written"}
"""The default recipe of each scale. By `paper`, networks learn little in few steps."""
VARIANT = ("recipe", "allow_import", "scale", "ledger")
"""Options that say which variant of an experiment is meant, and where its results are."""
PASSED_ON = (*LOCATION_KEYS, *PLACE_KEYS)
"""What may differ from machine to machine: given here, it holds for every run."""
PLAIN: Any = {"box": box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 2, 0, 0)}
"""The look of tables with long words."""
NAMES = "experiments, numbers of the paper's tables and figures, or your own YAML files"


def add_parser(commands: Commands) -> Parser:
    """Describe the command and its parts."""
    said = "List and run the experiments of the paper and ours."
    suite, parts = add_group(commands, "suite", said, "list|run")
    listing = add_command(parts, "list", run_list)
    said = "an experiment, the number of a table or figure of the paper, or your own YAML file"
    option(listing, "experiment NAME", said, nargs="?")
    add_common(listing, "seeds", *VARIANT)
    running = add_command(parts, "run", run)
    option(running, "names NAME ...", NAMES)
    group = running.add_argument_group("which runs")
    add_common(group, "seeds")
    option(group, "--methods NAME,…", "only these methods, and the bounds they need")
    said = "only this cell, row, or column, and the bounds it needs; repeatable"
    option(group, "--cell ROW|/COLUMN|ROW/COLUMN", said, list[str], dest="cells")
    said = "skip bounds that are not asked for; Ω then needs them from the ledger"
    option(group, "--without-bounds", said)
    option(group, "--dry-run", "only list what would be run")
    add_common(running, *VARIANT)
    said = "folder of the runs; processes with the same one share the work"
    option(running, "--work DIR", said, Place, Path("runs"))
    add_engine_options(running)
    group = running.add_argument_group("passed on to every run")
    add_fields(group, RunConfig, *PASSED_ON)
    return suite


def ledger_of(arguments: argparse.Namespace) -> "Ledger":
    """Return the ledger that the options name."""
    from distillmatch.suite.ledger import Ledger

    return Ledger(arguments.ledger or LEDGERS[arguments.scale])


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
    """List the experiments, or the cells of one, and what is done of them.

    distillmatch suite list
    distillmatch suite list table-2a
    distillmatch suite list own.yaml --ledger results
    """
    from distillmatch.suite.plan import plan

    ledger = ledger_of(arguments)
    names = [] if arguments.experiment is None else [arguments.experiment]
    experiments = chosen_experiments(
        names, arguments.scale, arguments.recipe, arguments.allow_import
    )
    planned = plan(experiments, arguments.seeds)
    done = {run.name for run in planned if ledger.find(run.config) is not None}
    if names:
        print_tables(experiments, ledger, arguments.seeds)
        missing = [run.name for run in planned if run.name not in done]
        end = ":" if missing else "."
        lines = [line for one in experiments for line in (one.source, one.note) if line]
        lines.append(f"{len(missing)} of {len(planned)} runs are missing in {ledger.folder}{end}")
        say("\n".join((*lines, *(f"  {name}" for name in missing))))
        return
    rows = []
    for one in experiments:
        runs = {run.name for run in planned if one.name in run.experiments}
        # The place in the paper in short: `Tables 6a–6d`.
        where = "" if one.beyond_paper else re.split("[;,] (?=[^0-9])", one.source)[0]
        where = re.sub(r"(\d\w)(?:, \w+)*, (\w+)$", r"\1–\2", where)
        rows.append((one.name, where, one.title, len(runs), len(runs & done)))
    table = make_table(("experiment", "in the paper", "what", ">runs", ">done"), rows, **PLAIN)
    for column in table.columns[:2]:
        column.no_wrap = True
    show(table)
    ours = {experiment.name for experiment in experiments if experiment.beyond_paper}
    paper = {run.name for run in planned if not ours.issuperset(run.experiments)}
    say(
        f"Runs that experiments share counted once: {len(paper)} for the paper, "
        f"{len(paper & done)} done; {len(planned)} with ours, {len(done)} done.\n"
        f"Results are in {ledger.folder}. The paper's numbers are names too, such as table-4a."
    )


def print_tables(
    experiments: Sequence[Experiment],
    ledger: "Ledger",
    seeds: Sequence[int] | None,
    methods: Collection[str] | None = None,
    cells: Sequence[str] | None = None,
) -> None:
    """Print the cells of experiments, or only those of these methods and names."""
    from distillmatch.report.comparison import Results, table_of
    from distillmatch.suite.plan import chosen_cells

    results = Results(ledger)
    for experiment in experiments:
        chosen = chosen_cells(experiment, methods, cells)
        if not chosen:
            continue
        whole = table_of(experiment, results, seeds or ())
        model = replace(whole, rows=[row for row in whole.rows if row.cell in chosen])
        between = " | " if len(experiment.metrics) < 3 else "\n"
        caption = "mean ± standard deviation over seeds"
        if model.is_compared:
            caption += f"; published {'|' if between == ' | ' else 'above'} ours"
            caption += ", which ● agrees, ▲ is higher, ▼ is lower"
        if any(row.archived for row in model.rows):
            caption += "; †: an archived run of the nearest preset"
        heads, rows = model.text(between)
        show(make_table(heads, rows, title=experiment.title, caption=caption, **PLAIN))


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing in the ledger, and show the tables.

    distillmatch suite run table-2a --scale quick
    distillmatch suite run table-4a --seeds 0 --dry-run
    distillmatch suite run table-2c --methods dm,gd --cell /Positive --runs-per-gpu 3
    """
    from distillmatch.runs.side_by_side import Job
    from distillmatch.suite.plan import plan
    from distillmatch.suite.queue import Queue

    work: Path = arguments.work.resolve()
    experiments = chosen_experiments(
        arguments.names, arguments.scale, arguments.recipe, arguments.allow_import
    )
    methods = None if arguments.methods is None else arguments.methods.split(",")
    seeds, cells = arguments.seeds, arguments.cells or None
    planned = plan(experiments, seeds, methods, cells, bounds=not arguments.without_bounds)
    changes = {key: value for key, value in vars(arguments).items() if key in PASSED_ON}
    jobs = [
        Job(one.name, with_absolute_locations(one.config.replace(**changes)), work / one.name)
        for one in planned
    ]
    check_engine_options(arguments, [job.config for job in jobs])
    ledger = ledger_of(arguments)
    if arguments.dry_run:
        _print_plan(Queue(jobs, ledger, tell))
        return 0
    check_writable(ledger.folder, "writing to the ledger")
    queue = do_runs(jobs, work, arguments, ledger)
    print_tables(experiments, ledger, seeds, methods, cells)
    say(f"{describe(queue)}; results are in {ledger.folder}")
    return _tell_failures(queue, work)


def _print_plan(queue: "Queue") -> None:
    from distillmatch.runs.folder import is_begun

    rows = []
    for name, entry in queue.entries.items():
        done = f"{100 * entry.share:.0f} % of its tasks done"
        going = f"to continue, {done}" if is_begun(entry.job.out) else "to run"
        states = {"done": "in the ledger", "elsewhere": "running in another process"}
        rows.append((name, entry.job.config.method, states.get(entry.state, going)))
    show(make_table(("run", "method", "state"), rows, **PLAIN))
    say(f"{describe(queue)}, {queue.count('waiting')} to run")


def _tell_failures(queue: "Queue", work: Path) -> int:
    """Print one sentence for runs that failed alike; return the exit code."""
    from distillmatch.suite.queue import error_file

    failed: dict[str, list[Path]] = {}
    for entry in queue.entries.values():
        if entry.state == "failed":
            failed.setdefault(entry.reason, []).append(error_file(entry.job))
    for reason, files in failed.items():
        names = ", ".join(file.parent.name for file in files)
        see = files[0] if len(files) == 1 else f"{files[0].name} in each one's folder under {work}"
        say(f"failed: {names}: {reason} (see {see})")
    return 1 if failed else 0
