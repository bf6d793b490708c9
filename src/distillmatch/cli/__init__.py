"""The command line: thin commands over the library."""

import os
import sys
from collections.abc import Sequence
from errno import EDQUOT, ENOSPC
from importlib.metadata import version

from distillmatch.cli import (
    bench,
    compare,
    demo,
    export,
    inspect,
    learn,
    predict,
    report,
    results,
    run,
    stream,
    suite,
    tune,
    views,
)
from distillmatch.cli.options import Parser
from distillmatch.errors import DistillMatchError
from distillmatch.terminal import replace_what_cannot_be_encoded


def make_parser() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="distillmatch",
        description="Semi-supervised continual learning: the world is the replay buffer.",
    )
    parser.add_argument("--version", action="version", version=version("distillmatch"))
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=Parser
    )
    of_the_paper = (stream, views, run, compare, demo, bench, report, tune, suite, results)
    for command in (*of_the_paper, learn, predict, inspect, export):
        command.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; wrong input ends it with one sentence and 2."""
    # Threads of torch that spin while they wait starve each other on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    replace_what_cannot_be_encoded()
    try:
        parsed = make_parser().parse_args(arguments)
        code: int | None = parsed.run(parsed)
        sys.stdout.flush()
    except DistillMatchError as error:
        sentence = " ".join(str(error).split())
        print(f"distillmatch: error: {sentence}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output went away (as `head` does); there is nobody left to tell.
        _drop_output()
        return 0
    except OSError as error:
        if error.errno not in (ENOSPC, EDQUOT):
            raise
        _drop_output()
        print("distillmatch: error: no space left for the output", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("distillmatch: interrupted", file=sys.stderr)
        return 130
    return code or 0


def _drop_output() -> None:
    """Let what is still to be printed go nowhere, or Python would try it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
