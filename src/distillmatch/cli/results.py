"""`distillmatch results`: list, filter and compare what the ledger has, check it, add to it."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from distillmatch.cli.options import Commands
from distillmatch.cli.suite_options import add_ledger_options, ledger_folder
from distillmatch.config import RunConfig, parse_yaml
from distillmatch.errors import ConfigError, ResultError
from distillmatch.terminal import plain_console, say

Result = dict[str, Any]
FILTERS = ("method", "seed", "experiment", "where")
"""The options that choose among results."""


@dataclass(frozen=True)
class Item:
    """A result, what it is called here, and the name that the ledger has it under.

    The folder of a run is called as its user likes. What is no result at all has the sentence that
    says so, for the check.
    """

    label: str
    name: str | None
    result: Result
    refusal: str = ""


def add_parser(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "results", help="list, filter and compare results of the ledger, check them, add some"
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="check | add | RESULT",
        help="check: verify them instead of listing them; add: put these into the ledger; result "
        "files or folders of runs, instead of the ledger's",
    )
    add_ledger_options(parser)
    parser.add_argument("--method", metavar="NAME", help="only results of this method")
    parser.add_argument("--seed", type=int, metavar="N", help="only results with this seed")
    parser.add_argument(
        "--experiment", metavar="NAME", help="only runs of this experiment, and its bounds"
    )
    parser.add_argument(
        "--where",
        nargs="+",
        default=[],
        action="extend",
        metavar="KEY=VALUE",
        help="only results with this value in their configuration",
    )
    parser.add_argument(
        "--archive",
        action="store_true",
        help="results that were made by options that are gone, in the ledger's archive, instead",
    )
    parser.add_argument(
        "--replace", action="store_true", help="add: also where the ledger has the run already"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """List and compare the results that were asked for, check them, or add them."""
    if arguments.files[:1] == ["add"]:
        for name in FILTERS:
            if getattr(arguments, name) not in (None, []):
                raise ConfigError(
                    f"--{name} goes with listing and checking; results add takes what is named"
                )
        _add([Path(file) for file in arguments.files[1:]], arguments)
        return
    if arguments.replace:
        raise ConfigError("--replace goes with results add only")
    check = arguments.files[:1] == ["check"]
    if check:
        arguments.files = arguments.files[1:]
    wanted = _wanted(arguments)
    if check:
        if arguments.archive:
            raise ConfigError("--archive goes with listing; archived results are checked no more")
        items = _read(arguments, _item_to_check)
        _check(_chosen(items, wanted, arguments.experiment))
    else:
        items = _with_omega(_read(arguments, _item))
        _list(_chosen(items, wanted, arguments.experiment))


def _add(paths: list[Path], arguments: argparse.Namespace) -> None:
    """Put results of runs made elsewhere into the ledger: all of them, or none."""
    from distillmatch.runs.result import config_of
    from distillmatch.suite.checks import problems_of
    from distillmatch.suite.ledger import Ledger

    if not paths:
        raise ConfigError("results add takes the result files or the folders of runs")
    ledger = Ledger(ledger_folder(arguments))
    results = [_item(path).result for path in paths]
    for path, result in zip(paths, results, strict=True):
        problems = problems_of(result, None, {})
        if problems:
            raise ResultError(f"{path}: {problems[0]}")
        if ledger.find(config_of(result, path)) not in (None, result) and not arguments.replace:
            there = ledger.path_of(config_of(result, path))
            raise ResultError(
                f"{there} has this run from elsewhere; --replace takes {path} instead"
            )
    for result in results:
        say(str(ledger.add(result)))


def _read(arguments: argparse.Namespace, read: Callable[[Path], Item]) -> list[Item]:
    """Return the results of the files that are named, or all of the ledger."""
    from distillmatch.suite.ledger import Ledger

    if arguments.files and arguments.ledger:
        raise ConfigError("results takes files or --ledger, not both")
    ledger = Ledger(ledger_folder(arguments))
    folder = ledger.archive if arguments.archive else ledger
    paths = [Path(file) for file in arguments.files] or folder.paths()
    if not paths:
        raise ResultError(f"{folder.folder}: expected results of runs, found none in this folder")
    return [read(path) for path in paths]


def _with_omega(items: list[Item]) -> list[Item]:
    """Fill in Ω while the bounds are among the results, of which the options may leave few."""
    from distillmatch.report.comparison import with_omega

    filled = with_omega([item.result for item in items])
    return [replace(item, result=result) for item, result in zip(items, filled, strict=True)]


def _chosen(items: list[Item], wanted: dict[str, Any], experiment: str | None) -> list[Item]:
    """Return the results that the options leave."""
    kept = [item for item in items if _is_as(item, wanted)]
    if experiment is not None:
        kept = _of_experiment(kept, experiment)
    if not kept:
        raise ResultError(f"none of {len(items)} results is as asked for")
    return kept


def _item(path: Path) -> Item:
    from distillmatch.runs import read_result
    from distillmatch.runs.folder import RESULT

    result = read_result(path)
    if path.is_dir() or path.name == RESULT:
        return Item(str(path), None, result)
    name = path.name.removesuffix(".json")
    return Item(name, name, result)


def _item_to_check(path: Path) -> Item:
    """Read a result; what is none is kept with the reason, so that the others are checked too."""
    try:
        return _item(path)
    except ResultError as error:
        return Item(str(path), None, {}, str(error))


def _wanted(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the configuration must hold."""
    wanted: dict[str, Any] = {}
    for word in arguments.where:
        key, equals, text = word.partition("=")
        key = key.replace("-", "_")
        if not equals or not key:
            raise ConfigError(f"--where takes key=value, not '{word}'")
        try:
            wanted[key] = parse_yaml(text)
        except yaml.YAMLError:
            raise ConfigError(f"--where takes key=value, and '{text}' is no value") from None
    for key in ("method", "seed"):
        if getattr(arguments, key) is not None:
            wanted[key] = getattr(arguments, key)
    return wanted


def _config(item: Item) -> RunConfig | None:
    """Return a result's configuration; only the check sees results that have none."""
    from distillmatch.runs.result import config_of

    if item.refusal:
        return None
    try:
        return config_of(item.result, Path(item.label))
    except ResultError:
        return None


def _is_as(item: Item, wanted: dict[str, Any]) -> bool:
    """Return whether a configuration holds what is wanted; what is no result may be any."""
    if item.refusal:
        return True
    config = {**item.result["config"], **item.result["options"]}
    return all(config.get(key) == value for key, value in wanted.items())


def _of_experiment(items: list[Item], name: str) -> list[Item]:
    """Return the runs that an experiment has, whatever their seeds, and its bounds."""
    from distillmatch.suite.catalogue import at_all_scales, load_experiment
    from distillmatch.suite.names import run_name
    from distillmatch.suite.plan import plan

    experiments = at_all_scales(load_experiment(name))
    configs = [_config(item) for item in items]
    seeds = {config.seed for config in configs if config is not None}
    runs = {run.name for run in plan(experiments, seeds)}
    return [
        item
        for item, config in zip(items, configs, strict=True)
        if config is None or run_name(config) in runs
    ]


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
    console = plain_console()
    console.print(table)
    console.print(comparison_table([item.result for item in items]))


def _check(items: list[Item]) -> None:
    """Print what is wrong with each result and what should be known of it."""
    from distillmatch.report.comparison import measures_omega
    from distillmatch.runs import bound_of
    from distillmatch.suite.catalogue import at_all_scales, experiment_names, load_experiment
    from distillmatch.suite.checks import problems_of, remarks_on
    from distillmatch.suite.plan import plan

    experiments = [
        one for name in experiment_names() for one in at_all_scales(load_experiment(name))
    ]
    seeds = {item.result.get("seed") for item in items}
    planned = plan(experiments, {seed for seed in seeds if type(seed) is int and seed >= 0})
    by_name = {run.name: run for run in planned}
    found = {
        item.label: [item.refusal] if item.refusal else problems_of(item.result, item.name, by_name)
        for item in items
    }
    bounds = {
        _stream_key(item.result): bound_of(item.result)
        for item in items
        if not found[item.label] and item.result["complete"] and measures_omega(item.result)
    }
    console = plain_console(soft_wrap=True, highlight=False)
    wrong = 0
    for item in items:
        problems = found[item.label]
        bound = None if problems else bounds.get(_stream_key(item.result))
        if bound is not None and item.result["metrics"]["omega"] is not None:
            problems = problems_of(item.result, item.name, by_name, bound)
        wrong += bool(problems)
        console.print(f"{item.label}: {'wrong' if problems else 'right'}")
        remarks = [] if problems else remarks_on(item.result, by_name)
        for line in (*problems, *(f"remark: {remark}" for remark in remarks)):
            console.print(f"  {line}")
    if wrong:
        raise ResultError(f"{wrong} of {len(items)} results are wrong; the lines above say how")
    console.print(f"all {len(items)} results are right")


def _stream_key(result: Result) -> str:
    return repr(sorted(result["stream"].items()))
