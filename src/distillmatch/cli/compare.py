"""`distillmatch compare`: results side by side, as a table and a picture."""

import argparse
from pathlib import Path

from distillmatch.cli.options import Commands
from distillmatch.report.canvas import check_picture_name
from distillmatch.terminal import plain_console


def add_parser(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser("compare", help="put the results of runs side by side")
    parser.add_argument(
        "results", nargs="+", type=Path, metavar="RESULT", help="result.json files or their folders"
    )
    parser.add_argument(
        "--draw", type=Path, metavar="FILE", help="write accuracy over tasks as a picture"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print methods against metrics; Ω where the bound of the same stream is among the results."""
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
    console = plain_console()
    console.print(comparison_table(results))
    if arguments.draw:
        draw_comparison(results, arguments.draw)
        console.print(f"picture: {arguments.draw}", highlight=False)
