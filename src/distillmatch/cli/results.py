"""`distillmatch results` and `compare`: list, filter, compare, check and add results of runs."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from distillmatch.cli.options import add_common, key_and_value
from distillmatch.cli.parser import Commands, Parser, add_command, option
from distillmatch.cli.suite import chosen_experiments, ledger_of
from distillmatch.config.base import Place
from distillmatch.config.recipe import RecipeName
from distillmatch.errors import ConfigError, ResultError
from distillmatch.suite.catalogue import Scale
from distillmatch.terminal import make_table, say, show

if TYPE_CHECKING:
    from distillmatch.suite.ledger import Ledger

Result = dict[str, Any]
IsChosen = Callable[[Result, str], bool]
"""Whether the options choose a result, by what it is called."""


def add_parser(commands: Commands) -> Parser:
    """Describe the command `results`."""
    parser = add_command(commands, "results", run)
    said = "check: verify results; add: put results into the ledger; RESULT: result files or "
    said += "folders of runs, instead of the ledger's"
    option(parser, "files check|add|RESULT", said, nargs="*")
    add_common(parser, "scale", "ledger")
    group = parser.add_argument_group("filters")
    option(group, "--method NAME", "results of this method")
    option(group, "--seed N", "results with this seed", int)
    said = "results of this experiment, or table of the paper, and its bounds"
    option(group, "--experiment NAME", said)
    option(group, "--where KEY=VALUE ...", "results with this value in their configuration")
    option(parser, "--archive", "list archived results, made with options that are gone")
    option(parser, "--replace", "add: replace runs that the ledger has already")
    return parser


def add_compare_parser(commands: Commands) -> Parser:
    """Describe the command `compare`."""
    parser = add_command(commands, "compare", run_compare)
    said = "result.json files, their folders, or folders of results"
    option(parser, "results RESULT ...", said, Place)
    option(parser, "--draw FILE", "draw accuracy over tasks", Place)
    return parser


def run_compare(arguments: argparse.Namespace) -> None:
    """Put the results of runs side by side.

    distillmatch compare runs/a runs/b --draw accuracy.png
    distillmatch compare results
    """
    from distillmatch.report.charts import check_chart_name, draw_comparison
    from distillmatch.report.comparison import comparison_table
    from distillmatch.suite.ledger import read_results

    if arguments.draw:
        check_chart_name(arguments.draw)
    results = read_results(arguments.results)
    show(comparison_table(results))
    if arguments.draw:
        draw_comparison(results, arguments.draw)
        say(f"picture: {arguments.draw}")


def run(arguments: argparse.Namespace) -> None:
    """List, filter, check, and add results of the ledger.

    distillmatch results --method dm --where tasks=10
    distillmatch results --experiment table-4a --seed 1
    distillmatch results check
    distillmatch results add runs/shapes-random-uniform-dm-seed1 --ledger my-results
    """
    action = arguments.files[0] if arguments.files[:1] in (["check"], ["add"]) else "list"
    paths = [Path(file) for file in arguments.files[action != "list" :]]
    ledger = ledger_of(arguments)
    if action == "add":
        _add(paths, ledger, arguments.replace)
        return
    if paths and arguments.ledger:
        raise ConfigError("results takes files or --ledger, not both")
    is_chosen = _choice(arguments)
    folder = ledger.archive if arguments.archive else ledger
    paths = paths or folder.paths()
    if not paths:
        raise ResultError(f"{folder.folder}: expected results of runs, found none in this folder")
    (_check if action == "check" else _list)(paths, is_chosen)


def _add(paths: list[Path], ledger: "Ledger", replace: bool) -> None:
    """Put results of runs made elsewhere into the ledger: all, or none."""
    from distillmatch.runs import read_result
    from distillmatch.runs.result import config_of
    from distillmatch.suite.checks import Check

    if not paths:
        raise ConfigError("results add needs result files or folders of runs")
    results, check = [read_result(path) for path in paths], Check({})
    for path, result in zip(paths, results, strict=True):
        if problems := check.add(result, None).problems:
            raise ResultError(f"{path}: {problems[0]}")
        config = config_of(result, path)
        if ledger.find(config) not in (None, result) and not replace:
            raise ResultError(
                f"{ledger.path_of(config)} already has another result of this run; give --replace "
                f"to put {path} in its place"
            )
    for result in results:
        say(str(ledger.add(result)))


def _choice(arguments: argparse.Namespace) -> IsChosen:
    """Return what chooses results by the options."""
    from distillmatch.runs.result import config_of
    from distillmatch.suite.names import run_name
    from distillmatch.suite.plan import plan

    pairs = [key_and_value("--where", word) for word in arguments.where]
    wanted = {key.replace("-", "_"): value for key, value in pairs}
    given = {"method": arguments.method, "seed": arguments.seed}
    wanted |= {key: value for key, value in given.items() if value is not None}
    names = set()
    for name in filter(None, [arguments.experiment]):
        for scale in get_args(Scale):
            for recipe in get_args(RecipeName):
                names |= {run.name for run in plan(chosen_experiments([name], scale, recipe), [0])}

    def is_chosen(result: Result, label: str) -> bool:
        values = {**result["config"], **result["options"]}
        if any(values.get(key) != value for key, value in wanted.items()):
            return False
        try:
            return not names or run_name(config_of(result, label).replace(seed=0)) in names
        except ResultError:  # a listing shows it, and a check says what is wrong with it
            return True

    return is_chosen


def _label(path: Path) -> tuple[str, str | None]:
    """Return what a result is called here, and its name in the ledger, if it is from there."""
    if path.is_dir() or path.name == "result.json":
        return str(path), None
    name = path.name.removesuffix(".json")
    return name, name


def _list(paths: list[Path], is_chosen: IsChosen) -> None:
    """Print the chosen results and how they compare, Ω by bounds that may not be chosen."""
    from distillmatch.report.comparison import NAMES, code_shown, comparison_table, with_omega
    from distillmatch.runs import read_result

    filled = with_omega([read_result(path) for path in paths])
    labels = [_label(path)[0] for path in paths]
    chosen = [pair for pair in zip(filled, labels, strict=True) if is_chosen(*pair)]
    if not chosen:
        raise ResultError(f"none of {len(paths)} results matches the options")
    rows = []
    for result, label in chosen:
        tasks, stages = len(result["tasks"]), len(result["task_sizes"])
        done = tasks if tasks == stages else f"{tasks} of {stages}"
        method, reached = result["method"], f"{result['metrics']['A_N']:.1f}"
        made = result["machine"]["device"], code_shown(result)
        rows.append((label, NAMES.get(method, method), result["seed"], done, reached, *made))
    heads = ("run", "method", ">seed", ">tasks", ">A_N", "machine", "code")
    show(make_table(heads, rows, title=f"{len(chosen)} result{'s' if len(chosen) > 1 else ''}"))
    show(comparison_table([result for result, _ in chosen]))


def _check(paths: list[Path], is_chosen: IsChosen) -> None:
    """Print what is wrong with each result, and remarks on it; files that are none are wrong."""
    from distillmatch.runs import read_result
    from distillmatch.suite.checks import Check, Report

    check, reports = Check(), dict[str, Report]()
    for path in paths:
        label, name = _label(path)
        try:
            result = read_result(path)
        except ResultError as error:
            reports[str(path)] = Report([str(error)])
            continue
        if is_chosen(result, label):
            reports[label] = check.add(result, name)
    if not reports:
        raise ResultError(f"none of {len(paths)} results matches the options")
    check.finish()
    for label, report in reports.items():
        say(f"{label}: {'wrong' if report.problems else 'right'}")
        for line in report.problems or [f"remark: {remark}" for remark in report.remarks]:
            say(f"  {line}")
    if wrong := sum(bool(report.problems) for report in reports.values()):
        raise ResultError(f"{wrong} of {len(reports)} results are wrong; see the lines above")
    say(f"all {len(reports)} results are right")
