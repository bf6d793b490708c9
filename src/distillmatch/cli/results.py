"""`distillmatch results` and `compare`: list, filter, compare, check and add results of runs."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from rich.table import Table

from distillmatch.cli.options import key_and_value
from distillmatch.cli.parser import Commands, add_command
from distillmatch.cli.suite import add_ledger_options, chosen_experiments, ledger_folder
from distillmatch.config import RunConfig
from distillmatch.config.recipe import RecipeName
from distillmatch.errors import ConfigError, ResultError
from distillmatch.report.canvas import check_picture_name
from distillmatch.suite.catalogue import Scale
from distillmatch.terminal import plain_console, say

Result = dict[str, Any]
FILTERS = ("method", "seed", "experiment", "where")
"""The options that choose among results."""


@dataclass(frozen=True)
class Item:
    """A result, its label here, and its name in the ledger, if it is from there.

    A file that is not a result has the sentence that says so, for the check.
    """

    label: str
    name: str | None
    result: Result
    refusal: str = ""


def add_parser(commands: Commands) -> None:
    """Describe the command `results`."""
    parser = add_command(
        commands,
        "results",
        "list, filter, check and add results of the ledger",
        examples=(
            "results --method dm --where tasks=10",
            "results --experiment table-4a --seed 1",
            "results check",
            "results add runs/shapes-random-uniform-dm-seed1 --ledger my-results",
        ),
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="check | add | RESULT",
        help="check: verify results; add: put results into the ledger; result files or folders of "
        "runs, instead of the ledger's",
    )
    add_ledger_options(parser)
    group = parser.add_argument_group("only results")
    group.add_argument("--method", metavar="NAME", help="of this method")
    group.add_argument("--seed", type=int, metavar="N", help="with this seed")
    group.add_argument(
        "--experiment", metavar="NAME", help="of this experiment or table, and its bounds"
    )
    group.add_argument(
        "--where",
        nargs="+",
        default=[],
        action="extend",
        metavar="KEY=VALUE",
        help="with this value in their configuration",
    )
    parser.add_argument(
        "--archive",
        action="store_true",
        help="list archived results, made with options that are gone",
    )
    parser.add_argument(
        "--replace", action="store_true", help="add: replace runs that the ledger has already"
    )
    parser.set_defaults(run=run)


def add_compare_parser(commands: Commands) -> None:
    """Describe the command `compare`."""
    parser = add_command(
        commands,
        "compare",
        "put the results of runs side by side",
        examples=("compare runs/a runs/b --draw accuracy.png", "compare results"),
    )
    parser.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULT",
        help="result.json files, their folders, or folders of results",
    )
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw accuracy over tasks")
    parser.set_defaults(run=run_compare)


def run_compare(arguments: argparse.Namespace) -> None:
    """Print methods against metrics; Ω if the bound of the same stream is among the results."""
    from distillmatch.report.comparison import (
        comparison_table,
        draw_comparison,
        require_matplotlib,
    )
    from distillmatch.suite.ledger import read_results

    if arguments.draw:
        check_picture_name(arguments.draw)
        require_matplotlib()
    results = read_results(arguments.results)
    console = plain_console(soft_wrap=False)
    console.print(comparison_table(results))
    if arguments.draw:
        draw_comparison(results, arguments.draw)
        console.print(f"picture: {arguments.draw}", highlight=False, soft_wrap=True)


def run(arguments: argparse.Namespace) -> None:
    """List and compare the chosen results, check them, or add them."""
    if arguments.files[:1] == ["add"]:
        for name in FILTERS:
            if getattr(arguments, name) not in (None, []):
                raise ConfigError(
                    f"--{name} goes with listing and checking; results add takes the named files"
                )
        _add([Path(file) for file in arguments.files[1:]], arguments)
        return
    if arguments.replace:
        raise ConfigError("--replace goes with results add only")
    check = arguments.files[:1] == ["check"]
    if check:
        arguments.files = arguments.files[1:]
    if check and arguments.archive:
        raise ConfigError("--archive goes with listing; archived results are not checked")
    is_chosen, paths = _choice(arguments), _paths(arguments)
    if check:
        _check(paths, is_chosen)
        return
    items = [item for item in _with_omega([_item(path) for path in paths]) if is_chosen(item)]
    if not items:
        raise ResultError(f"none of {len(paths)} results matches the options")
    _list(items)


def _add(paths: list[Path], arguments: argparse.Namespace) -> None:
    """Put results of runs made elsewhere into the ledger: all, or none."""
    from distillmatch.runs.result import config_of
    from distillmatch.suite.checks import Check
    from distillmatch.suite.ledger import Ledger

    if not paths:
        raise ConfigError("results add needs result files or folders of runs")
    ledger = Ledger(ledger_folder(arguments))
    results, check = [_item(path).result for path in paths], Check({})
    for path, result in zip(paths, results, strict=True):
        problems = check.add(result, None).problems
        if problems:
            raise ResultError(f"{path}: {problems[0]}")
        if ledger.find(config_of(result, path)) not in (None, result) and not arguments.replace:
            there = ledger.path_of(config_of(result, path))
            raise ResultError(
                f"{there} already has another result of this run; give --replace to put {path} in "
                "its place"
            )
    for result in results:
        say(str(ledger.add(result)))


def _paths(arguments: argparse.Namespace) -> list[Path]:
    """Return the named files, or all of the ledger."""
    from distillmatch.suite.ledger import Ledger

    if arguments.files and arguments.ledger:
        raise ConfigError("results takes files or --ledger, not both")
    ledger = Ledger(ledger_folder(arguments))
    folder = ledger.archive if arguments.archive else ledger
    paths = [Path(file) for file in arguments.files] or folder.paths()
    if not paths:
        raise ResultError(f"{folder.folder}: expected results of runs, found none in this folder")
    return paths


def _with_omega(items: list[Item]) -> list[Item]:
    """Fill in Ω before the options leave out bounds."""
    from distillmatch.report.comparison import with_omega

    filled = with_omega([item.result for item in items])
    return [replace(item, result=result) for item, result in zip(items, filled, strict=True)]


def _choice(arguments: argparse.Namespace) -> Callable[[Item], bool]:
    """Return what chooses results by the options; files that are no results are chosen too."""
    from distillmatch.suite.names import run_name

    wanted = _wanted(arguments)
    runs = None if arguments.experiment is None else _runs_of(arguments.experiment)

    def is_chosen(item: Item) -> bool:
        if item.refusal:
            return True
        values = {**item.result["config"], **item.result["options"]}
        if any(values.get(key) != value for key, value in wanted.items()):
            return False
        config = None if runs is None else _config(item)
        return runs is None or config is None or run_name(config.replace(seed=0)) in runs

    return is_chosen


def _item(path: Path) -> Item:
    from distillmatch.runs import read_result
    from distillmatch.runs.folder import RESULT

    result = read_result(path)
    if path.is_dir() or path.name == RESULT:
        return Item(str(path), None, result)
    name = path.name.removesuffix(".json")
    return Item(name, name, result)


def _item_to_check(path: Path) -> Item:
    """Read a result; keep the reason why a file is none, so that the others are checked too."""
    try:
        return _item(path)
    except ResultError as error:
        return Item(str(path), None, {}, str(error))


def _wanted(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the values that the configuration must have."""
    pairs = [key_and_value("--where", word) for word in arguments.where]
    wanted = {key.replace("-", "_"): value for key, value in pairs}
    for key in ("method", "seed"):
        if getattr(arguments, key) is not None:
            wanted[key] = getattr(arguments, key)
    return wanted


def _config(item: Item) -> RunConfig | None:
    """Return a result's configuration, if it has one."""
    from distillmatch.runs.result import config_of

    try:
        return config_of(item.result, Path(item.label))
    except ResultError:
        return None


def _runs_of(experiment: str) -> set[str]:
    """Return the names of an experiment's runs and bounds with seed 0, at any scale."""
    from distillmatch.suite.plan import plan

    experiments = [
        one
        for scale in get_args(Scale)
        for recipe in get_args(RecipeName)
        for one in chosen_experiments([experiment], scale, recipe)
    ]
    return {run.name for run in plan(experiments, [0])}


def _list(items: list[Item]) -> None:
    from distillmatch.report.comparison import NAMES, code_shown, comparison_table

    table = Table(title=f"{len(items)} result{'s' if len(items) > 1 else ''}")
    for name in ("run", "method"):
        table.add_column(name, overflow="fold")
    for name in ("seed", "tasks", "A_N"):
        table.add_column(name, justify="right")
    for name in ("machine", "code"):
        table.add_column(name)
    for item in items:
        result = item.result
        tasks, stages = len(result["tasks"]), len(result["task_sizes"])
        table.add_row(
            item.label,
            NAMES.get(result["method"], result["method"]),
            str(result["seed"]),
            str(tasks) if tasks == stages else f"{tasks} of {stages}",
            f"{result['metrics']['A_N']:.1f}",
            result["machine"]["device"],
            code_shown(result),
        )
    console = plain_console(highlight=False)
    console.print(table)
    console.print(comparison_table([item.result for item in items]))


def _check(paths: list[Path], is_chosen: Callable[[Item], bool]) -> None:
    """Print what is wrong with each result, and remarks on it."""
    from distillmatch.suite.checks import Check, Report

    check, reports = Check(), dict[str, Report]()
    for path in paths:
        item = _item_to_check(path)
        if is_chosen(item):
            refused = Report([item.refusal]) if item.refusal else None
            reports[item.label] = refused or check.add(item.result, item.name)
    if not reports:
        raise ResultError(f"none of {len(paths)} results matches the options")
    check.finish()
    console, wrong = plain_console(soft_wrap=True, highlight=False), 0
    for label, report in reports.items():
        wrong += bool(report.problems)
        console.print(f"{label}: {'wrong' if report.problems else 'right'}")
        for line in report.problems or [f"remark: {remark}" for remark in report.remarks]:
            console.print(f"  {line}")
    if wrong:
        raise ResultError(f"{wrong} of {len(reports)} results are wrong; see the lines above")
    console.print(f"all {len(reports)} results are right")
