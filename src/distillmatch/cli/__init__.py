"""The command line: thin commands over the library."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from errno import EDQUOT, ENOSPC
from importlib.metadata import version

from distillmatch.cli import (
    bench,
    compare,
    demo,
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
from distillmatch.errors import DistillMatchError, OutOfMemoryError
from distillmatch.terminal import replace_what_cannot_be_encoded, tell, without_progress

NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"
NO_GPU_MEMORY = ("CUDA out of memory", "CUDA error: out of memory", "STATUS_ALLOC_FAILED")
"""By these words of torch and its libraries one knows an error that says that memory ran out."""

TRAINING = ("run", "learn", "tune")
"""The commands with options for the sizes of batches and for the network."""


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
    of_the_paper = (stream, views, run, compare, demo, bench, tune, suite, results, report)
    for command in (*of_the_paper, learn, predict):
        command.add_parser(commands)
    learn.add_inspect_parser(commands)
    learn.add_export_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; wrong input ends it with one sentence and 2."""
    # Threads of torch that spin while they wait starve each other on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _open_closed_outputs()
    replace_what_cannot_be_encoded()
    try:
        parsed = make_parser().parse_args(arguments)
        code = _run(parsed)
        sys.stdout.flush()
    except DistillMatchError as error:
        sentence = " ".join(str(error).split())
        tell(f"error: {sentence}")
        return 2
    except BrokenPipeError:
        # The reader of our output went away (as `head` does); there is nobody left to tell.
        _drop_output()
        return 0
    except OSError as error:
        if error.errno in (ENOSPC, EDQUOT) and error.filename is None:
            _drop_output()
            tell("error: no space left for the output")
            return 2
        where = f"{error.filename}: " if error.filename else ""
        tell(f"error: {where}{error.strerror or error}")
        return 2
    except KeyboardInterrupt:
        tell("interrupted")
        return 130
    return code or 0


def _run(parsed: argparse.Namespace) -> int | None:
    """Run a command and return its exit code; where memory runs out, say what needs less."""
    quiet = getattr(parsed, "quiet", False)
    try:
        with without_progress() if quiet else nullcontext():
            code: int | None = parsed.run(parsed)
    except (MemoryError, RuntimeError) as error:
        said = str(error)
        if isinstance(error, MemoryError) or NO_MEMORY in said:
            short = "machine"
        elif any(words in said for words in NO_GPU_MEMORY):
            short = "GPU"
        else:
            raise
        asked = re.search(r"allocate ([\d.]+ \w+)", said)
        sentence = f"the memory of the {short} ran out"
        sentence += f" when {asked[1]} more were asked for" if asked else ""
        if parsed.command in TRAINING:
            sentence += "; a smaller --batch, --unlabeled-batch or --network needs less"
        raise OutOfMemoryError(sentence) from error
    return code


def _open_closed_outputs() -> None:
    """Let what is printed go nowhere where the caller has closed standard output or error."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(nowhere, "w", encoding="utf-8"))


def _drop_output() -> None:
    """Let what is still to be printed go nowhere, or Python would try it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
