"""`distillmatch inspect`: what a learner knows and how it came to it, without loading it."""

import argparse
import json
from pathlib import Path

from distillmatch.terminal import plain_console


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe the command."""
    parser = commands.add_parser("inspect", help="show what a learner of your own knows")
    parser.add_argument("state", type=Path, metavar="STATE", help="folder of the learner")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print the learner's classes, settings, sizes, thresholds and history."""
    from distillmatch.learner.state import read_state
    from distillmatch.report.learner_text import history_table, state_table

    summary = read_state(arguments.state)
    if arguments.json:
        print(json.dumps(summary, indent=2))
        return
    console = plain_console()
    console.print(state_table(summary))
    if summary["history"]:
        console.print(history_table(summary["history"]))
