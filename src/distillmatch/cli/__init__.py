"""The command line: thin commands over the library."""

import argparse
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from errno import EDQUOT, ENOSPC
from importlib.metadata import version

from distillmatch.cli import (
    bench,
    completion,
    demo,
    learn,
    predict,
    report,
    results,
    review,
    run,
    stream,
    suite,
    tune,
)
from distillmatch.cli.parser import Parser
from distillmatch.errors import DistillMatchError, OutOfMemoryError
from distillmatch.terminal import replace_what_cannot_be_encoded, tell, without_progress

COMMANDS = {
    "start here": (demo.add_parser, stream.add_parser, stream.add_views_parser),
    "your own images": (
        learn.add_parser,
        predict.add_parser,
        review.add_parser,
        learn.add_inspect_parser,
        learn.add_export_parser,
    ),
    "runs": (run.add_parser, results.add_compare_parser, tune.add_parser, bench.add_parser),
    "the paper's experiments": (suite.add_parser, results.add_parser, report.add_parser),
    "your shell": (completion.add_parser,),
}
"""What adds each command, in the groups of the help."""
NO_GPU_MEMORY = ("CUDA out of memory", "CUDA error: out of memory", "STATUS_ALLOC_FAILED")
"""Words of torch and its libraries in errors that say that the memory of a GPU ran out."""
TRAINING = ("run", "learn", "tune")
"""The commands with options for the sizes of batches and for the network."""


def make_parser() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="distillmatch",
        usage="%(prog)s COMMAND [options]",
        description="Semi-supervised continual learning: the world is the replay buffer.",
    )
    parser.add_argument("--version", action="version", version=version("distillmatch"))
    commands = parser.add_subparsers(
        dest="command",
        prog="distillmatch",
        required=True,
        metavar="COMMAND",
        parser_class=Parser,
        help=argparse.SUPPRESS,
    )
    groups = []
    for title, adders in COMMANDS.items():
        added = [add(commands) for add in adders]
        lines = [f"  {one.prog.split()[-1]:<12}{one.description}" for one in added]
        groups.append("\n".join((f"{title}:", *lines)))
    parser.epilog = "\n\n".join([*groups, "Each command has its own --help, with examples."])
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; wrong input ends it with one sentence and 2."""
    # Threads of torch that spin while they wait starve each other on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _open_closed_outputs()
    replace_what_cannot_be_encoded()
    try:
        code = _run(make_parser().parse_args(arguments))
        sys.stdout.flush()
    except DistillMatchError as error:
        return _refuse(" ".join(str(error).split()))
    except BrokenPipeError:  # the reader of the output went away, as `head` does
        _drop_output()
        return 0
    except OSError as error:
        if error.errno in (ENOSPC, EDQUOT) and error.filename is None:
            _drop_output()
            return _refuse("no space left for the output")
        where = f"{error.filename}: " if error.filename else ""
        return _refuse(f"{where}{error.strerror or error}")
    except KeyboardInterrupt as stop:
        tell(str(stop) or "interrupted")
        if not hasattr(stop, "exit_code"):
            return 130
        from distillmatch.runs.interruption import end_process

        end_process(stop)  # type: ignore[arg-type]
    return code


def _refuse(sentence: str) -> int:
    tell(f"error: {sentence}")
    return 2


def _run(parsed: argparse.Namespace) -> int:
    """Run a command and return its exit code; if memory runs out, say what needs less."""
    try:
        with without_progress() if getattr(parsed, "quiet", False) else nullcontext():
            return parsed.run(parsed) or 0
    except SystemExit as end:  # our own code never raises it
        *_, (frame, _) = traceback.walk_tb(end.__traceback__)
        raise DistillMatchError(
            f"{frame.f_code.co_filename}, {frame.f_code.co_name}() raised SystemExit ({end.code}), "
            "which would end the program"
        ) from end
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in text:
            short = "machine"
        elif any(words in text for words in NO_GPU_MEMORY):
            short = "GPU"
        else:
            raise
        asked = re.search(r"allocate ([\d.]+ \w+)", text)
        sentence = f"the {short} ran out of memory"
        sentence += f" when {asked[1]} more were requested" if asked else ""
        if parsed.command in TRAINING:
            sentence += "; a smaller --batch, --unlabeled-batch or --network needs less"
        raise OutOfMemoryError(sentence) from error


def _open_closed_outputs() -> None:
    """Send what is printed nowhere if the caller has closed standard output or error."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(nowhere, "w", encoding="utf-8"))


def _drop_output() -> None:
    """Send what is still to be printed nowhere, or Python would try it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
