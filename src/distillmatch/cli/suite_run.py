"""`distillmatch suite run`: all runs of some experiments, whatever happens in between."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from distillmatch.cli.engines import (
    add_engine_options,
    check_engine_options,
    configs_left,
    make_engine,
    refuse_without_gpu,
    with_absolute_locations,
)
from distillmatch.cli.options import Commands, add_field_option
from distillmatch.cli.suite_options import add_suite_options, chosen_experiments, ledger_folder
from distillmatch.cli.suite_progress import SuiteProgress, describe
from distillmatch.config import LOCATION_KEYS, RunConfig
from distillmatch.terminal import plain_console, tell

if TYPE_CHECKING:
    from distillmatch.runs.side_by_side import Job
    from distillmatch.suite.queue import Entry, Queue

PASSED_ON = (*LOCATION_KEYS, "device", "precision", "resident_bytes")
"""What may differ from machine to machine: given here, it holds for every run."""


def add_run_parser(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser("run", help="run what the ledger does not have yet")
    parser.add_argument("names", nargs="+", metavar="NAME", help="experiments, or YAML files")
    parser.add_argument(
        "--methods",
        metavar="NAME,…",
        help="only these methods, and the bounds they need",
    )
    parser.add_argument(
        "--cell",
        action="append",
        dest="cells",
        metavar="ROW|/COLUMN|ROW/COLUMN",
        help="only this cell, row or column, by its names in suite list NAME, and the bounds it "
        "needs; may be repeated",
    )
    parser.add_argument(
        "--without-bounds",
        action="store_true",
        help="run no bound that is not asked for itself: results whose bound the ledger does not "
        "have are without Ω until it does",
    )
    parser.add_argument(
        "--in-order",
        action="store_true",
        help="run in the order in which experiments and cells are named, bounds first, and not the "
        "longest first: what matters most is done if time runs out",
    )
    add_suite_options(parser)
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder for the runs' own folders; processes with the same one share the work "
        "(default: runs)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be run")
    add_engine_options(parser)
    group = parser.add_argument_group("passed on to every run")
    for name in PASSED_ON:
        add_field_option(group, RunConfig, name)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Work off the queue; runs that failed are listed at the end, and the code is 1 then."""
    from distillmatch.runs import Interrupted
    from distillmatch.runs.lock import excludes
    from distillmatch.suite.ledger import Ledger
    from distillmatch.suite.queue import Queue

    check_engine_options(arguments)
    work: Path = arguments.work.resolve()
    jobs, ledger = planned_jobs(arguments, work), Ledger(ledger_folder(arguments))
    if arguments.dry_run:
        _print_plan(Queue(jobs, ledger, tell, in_order=arguments.in_order))
        return
    progress = SuiteProgress()
    try:
        queue = Queue(jobs, ledger, progress.tell, in_order=arguments.in_order)
        refuse_without_gpu(arguments, configs_left(queue))
        if not queue.over:
            ledger.check_writable()
        if not excludes(work):
            progress.tell(f"{work} is on a file system without locks: let no second process join")
        make_engine(arguments, queue, work, progress.show).run()
    except Interrupted as stop:
        tell(str(stop))
        raise SystemExit(stop.exit_code) from None
    finally:
        progress.stop()
    _report(queue, ledger.folder, work)


def planned_jobs(arguments: argparse.Namespace, work: Path) -> "list[Job]":
    """Return the runs of the experiments, each with its folder, as this machine is to run them."""
    from distillmatch.runs.side_by_side import Job
    from distillmatch.suite.plan import plan

    experiments = chosen_experiments(
        arguments.names, arguments.scale, arguments.recipe, arguments.allow_import
    )
    methods = None if arguments.methods is None else arguments.methods.split(",")
    changes = {key: value for key, value in vars(arguments).items() if key in PASSED_ON}
    runs = plan(
        experiments,
        arguments.seeds,
        methods,
        arguments.cells,
        bounds=not arguments.without_bounds,
    )
    return [
        Job(
            planned.name,
            with_absolute_locations(planned.config.replace(**changes)),
            work / planned.name,
        )
        for planned in runs
    ]


def _print_plan(queue: "Queue") -> None:
    table = Table()
    for name in ("run", "method", "state"):
        table.add_column(name, overflow="fold")
    for name, entry in queue.entries.items():
        table.add_row(name, entry.job.config.method, _standing(entry))
    console = plain_console(highlight=False)
    console.print(table)
    console.print(f"{describe(queue)}, {queue.count('waiting')} to run")


def _standing(entry: "Entry") -> str:
    if entry.state == "done":
        return "in the ledger"
    if entry.state == "elsewhere":
        return "under way in another process"
    begun = (entry.job.out / "checkpoints").exists()
    return f"to continue, {100 * entry.share:.0f} % of its tasks done" if begun else "to run"


def _report(queue: "Queue", ledger: Path, work: Path) -> None:
    """Say how it ended, and of runs that failed alike once why."""
    from distillmatch.suite.queue import error_file

    console = plain_console(highlight=False)
    console.print(f"{describe(queue)}; results are in {ledger}", soft_wrap=True)
    failed: dict[str, list[Job]] = {}
    for name in queue.names("failed"):
        entry = queue.entries[name]
        failed.setdefault(entry.reason, []).append(entry.job)
    for reason, jobs in failed.items():
        where = error_file(jobs[0])
        see = where if len(jobs) == 1 else f"{where.name} in each one's folder under {work}"
        sentence = f"failed: {', '.join(job.name for job in jobs)}: {reason} (see {see})"
        console.print(sentence, soft_wrap=True)
    if failed:
        raise SystemExit(1)
