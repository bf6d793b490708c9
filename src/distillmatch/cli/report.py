"""`distillmatch report`: published beside reproduced, as a page, Markdown, LaTeX and CSV."""

import argparse
from pathlib import Path

from distillmatch.cli.suite_options import add_ledger_options, ledger_folder
from distillmatch.errors import ConfigError
from distillmatch.sources import source_names


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe the command."""
    parser = commands.add_parser("report", help="put results beside the paper's figures, as a page")
    parser.add_argument(
        "results",
        nargs="*",
        type=Path,
        metavar="RESULT",
        help="result files, folders of runs, or folders of results, in place of the scale's ledger",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder that the report goes into")
    parser.add_argument(
        "--experiments",
        nargs="+",
        default=[],
        metavar="NAME|FILE",
        help="tables and figures to show, or YAML files of your own (default: all of the paper's)",
    )
    add_ledger_options(parser)
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="SOURCE=DIR",
        help="where a source's files are, to draw its streams, as cifar100=DIR; may be repeated",
    )
    parser.add_argument(
        "--readme", type=Path, metavar="FILE", help="bring the state in this README up to date"
    )
    parser.add_argument(
        "--reproduction",
        type=Path,
        metavar="FILE",
        help="bring the tables, bars and runs in this page up to date",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Read the results and write what was asked for."""
    from distillmatch.report.paper_reasons import FILE, read_reasons, with_reasons
    from distillmatch.report.paper_report import check_folder, paper_of, write_report
    from distillmatch.report.paper_state import FIGURE, update_readme
    from distillmatch.report.paper_tables import read_results
    from distillmatch.report.reproduction_page import update_page

    if arguments.out is None and arguments.readme is None and arguments.reproduction is None:
        raise ConfigError("nothing to write: give --out DIR, --readme FILE or --reproduction FILE")
    data = dict(_source_folder(word) for word in arguments.data)
    if arguments.out is not None:
        check_folder(arguments.out)
    given = list(arguments.results)
    if arguments.ledger is not None or not given:
        given.append(ledger_folder(arguments))
    paper = paper_of(read_results(given), arguments.experiments, arguments.scale)
    files = dict.fromkeys(folder / FILE for folder in given if (folder / FILE).exists())
    if files:
        paper = with_reasons(paper, [reason for file in files for reason in read_reasons(file)])
    if arguments.out is not None:
        print(f"report: {write_report(paper, arguments.out, data)}")
    if arguments.readme is not None:
        update_readme(arguments.readme, paper)
        print(f"state: {arguments.readme}, {arguments.readme.parent / FIGURE}")
    if arguments.reproduction is not None:
        update_page(arguments.reproduction, paper)
        print(f"reproduction: {arguments.reproduction}")


def _source_folder(word: str) -> tuple[str, Path]:
    source, equals, folder = word.partition("=")
    if not equals or not source or not Path(folder).is_dir():
        raise ConfigError(f"--data takes SOURCE=DIR with a folder that exists, not '{word}'")
    if ":" not in source and source not in source_names():
        names = ", ".join(source_names())
        raise ConfigError(
            f"--data must name a source, one of {names} or your own as module:name, not '{source}'"
        )
    return source, Path(folder)
