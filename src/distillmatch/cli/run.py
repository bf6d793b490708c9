"""`distillmatch run`: learn a stream by a method and write the result."""

import argparse
from contextlib import nullcontext
from pathlib import Path

from distillmatch.cli.options import Commands, add_command
from distillmatch.cli.progress import LiveProgress
from distillmatch.cli.run_options import MethodParser, add_run_options, run_config_from, run_values
from distillmatch.cli.saved_stream import config_beside
from distillmatch.cli.seeds import add_seed_options, run_seeds, wants_seeds
from distillmatch.config import RunConfig
from distillmatch.plugins import METHODS, plugin_names, refuse_unknown
from distillmatch.sources import load_source
from distillmatch.streams import read_stream
from distillmatch.terminal import plain_console, tell


def add_parser(commands: Commands) -> None:
    """Describe the command."""
    parser = add_command(commands, "run", MethodParser, help="learn a stream and write the result")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for result.json"
    )
    parser.add_argument(
        "--stream",
        type=Path,
        metavar="FILE",
        help="learn a stream that `distillmatch stream --save` wrote; what describes it comes from "
        "there",
    )
    parser.add_argument(
        "--bound",
        type=Path,
        metavar="RESULT",
        help="result of method offline on the same stream, by which Ω is computed",
    )
    parser.add_argument(
        "--resume",
        choices=("no", "auto", "must"),
        default="auto",
        help="a run that DIR holds: no starts over, auto continues it, must also refuses to start "
        "where there is none (default: auto)",
    )
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=60.0,
        metavar="X",
        help="write a checkpoint so often within a task; 0: only after each (default: 60)",
    )
    parser.add_argument(
        "--tensorboard",
        action="store_true",
        help="write losses, accuracies and the detector's figures to DIR/tensorboard too",
    )
    parser.add_argument(
        "--at-once",
        type=int,
        metavar="N",
        help="method offline: stages learned at once, side by side (default: all on a GPU, else 1)",
    )
    add_seed_options(parser)
    parser.add_argument("--quiet", action="store_true", help="show no progress and no table")
    add_run_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the configuration that the options describe."""
    config = _config(arguments)
    from distillmatch.report.comparison import comparison_table, task_table
    from distillmatch.runs import Interrupted, bound_of, read_result
    from distillmatch.runs import run as run_config
    from distillmatch.runs.tensorboard import TensorBoard
    from distillmatch.runs.threads import end_process

    if wants_seeds(arguments):
        run_seeds(arguments, config, tell)
        return
    bound = bound_of(read_result(arguments.bound)) if arguments.bound else None
    progress = None if arguments.quiet else LiveProgress(config.method)
    events = TensorBoard(arguments.out) if arguments.tensorboard else nullcontext()
    dataset = stream = None
    if arguments.stream:
        dataset = load_source(config)
        stream = read_stream(arguments.stream, dataset)
    try:
        with events:
            result = run_config(
                config,
                arguments.out,
                dataset=dataset,
                stream=stream,
                bound=bound,
                progress=progress,
                resume=arguments.resume,
                checkpoint_seconds=arguments.checkpoint_seconds,
                tell=tell,
                at_once=arguments.at_once,
            )
    except Interrupted as stop:
        tell(str(stop))
        end_process(stop)
    finally:
        if progress is not None:
            progress.stop()
    if not arguments.quiet:
        console = plain_console()
        console.print(task_table(result))
        console.print(comparison_table([result]))
        console.print(f"result: {arguments.out / 'result.json'}", highlight=False)


def _config(arguments: argparse.Namespace) -> RunConfig:
    """Return the configuration, with a saved stream's where that is to be learned."""
    if arguments.stream is None:
        config = run_config_from(arguments)
    else:
        # What is stored and what is random in training is the run's own.
        config = config_beside(
            arguments.stream,
            arguments,
            RunConfig,
            free=("coreset", "recipe", "seed"),
            given=run_values(arguments),
        )
    refuse_unknown(config.method, plugin_names(METHODS), "method")
    return config
