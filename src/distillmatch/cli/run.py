"""`distillmatch run`: learn a stream by a method, with one seed or several, and write results."""

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from distillmatch.cli.options import add_common, add_config_options, config_for_stream, config_from
from distillmatch.cli.parser import Commands, Parser, add_command, option
from distillmatch.cli.queue import ON_CPU, do_runs
from distillmatch.config import RunConfig
from distillmatch.config.base import Count, CountOrZero, Place
from distillmatch.errors import ConfigError, RunFolderError, TrainingError
from distillmatch.plugins import METHODS, plugin_names, refuse_unknown
from distillmatch.sources import load_source
from distillmatch.streams import Stream
from distillmatch.terminal import say, show, shown_progress, tell

RUNS = Path("runs")
Resume = Literal["no", "auto", "must"]


def add_parser(commands: Commands) -> Parser:
    """Describe the command."""
    parser = add_command(commands, "run", run)
    group = parser.add_argument_group("result")
    said = f"folder of the result, log, and checkpoints (default: {RUNS}/ and the run's name)"
    option(group, "--out DIR", said, Place)
    said = "result of method offline on the same stream, to compute Ω"
    option(group, "--bound RESULT", said, Place)
    option(group, "--tensorboard", "also log to TensorBoard, in DIR/tensorboard")
    option(group, "--quiet", "print no progress and no table")
    group = parser.add_argument_group("several seeds")
    said = "run each of these seeds, in DIR/seed-N, and compare them"
    option(group, "--seeds N,N,…", said, tuple[CountOrZero, ...])
    group = parser.add_argument_group("checkpoints")
    said = "no: start over; auto: resume what DIR holds; must: fail if there is nothing to resume"
    option(group, "--resume", said, Resume, "auto")
    add_common(group, "checkpoint_seconds")
    said = "learn a stream saved by `distillmatch stream --save`, which also describes it"
    option(parser, "--stream FILE", said, Place)
    said = "method offline: stages learned side by side (default: all on a GPU, else 1)"
    option(parser, "--at-once N", said, Count)
    add_config_options(parser, RunConfig)
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Learn a stream of tasks by a method and write the result.

    distillmatch run --tasks 5 --epochs 12 --network wrn-10-1
    distillmatch run --source cifar100 --method gd --order parent --unlabeled positive --coreset 400
    distillmatch run --source folder --data-dir photos --unlabeled-dirs camera --tasks 3
    distillmatch run --config run.yaml --seeds 1,2,3
    distillmatch run --method dm --help
    """
    if arguments.stream is None:
        config = config_from(arguments, RunConfig)
    else:
        # What is stored, and what is random in training, belongs to the run.
        free = ("coreset", "recipe", "seed")
        config = config_for_stream(arguments.stream, arguments, RunConfig, free)
    refuse_unknown(config.method, plugin_names(METHODS), "method")
    if arguments.seeds is None:
        _run_one(arguments, config)
        return
    for name in ("seed", "bound", "at_once"):
        if getattr(arguments, name, None) is not None:
            shown = name.replace("_", "-")
            raise ConfigError(f"--{shown} cannot be given together with --seeds")
    _run_seeds(arguments, config)


def default_folder(config: RunConfig, stream: Path | None = None) -> Path:
    """Return the folder of a run whose user names none; different runs have different ones."""
    from distillmatch.methods import with_options
    from distillmatch.suite.names import run_name

    name = run_name(with_options(config))
    return RUNS / (name if stream is None else f"{stream.stem}-{name}")


def _run_one(arguments: argparse.Namespace, config: RunConfig) -> None:
    """Run one seed and print its tasks and figures."""
    from distillmatch.report.comparison import comparison_table, task_table
    from distillmatch.runs import bound_of, read_result
    from distillmatch.runs import run as run_config
    from distillmatch.runs.log import event_files_in

    out = arguments.out or default_folder(config, arguments.stream)
    bound = bound_of(read_result(arguments.bound)) if arguments.bound else None
    dataset = load_source(config) if arguments.stream else None
    stream = Stream.load(arguments.stream, dataset) if dataset is not None else None
    events = event_files_in(out) if arguments.tensorboard else nullcontext()
    with events, shown_progress(None, not arguments.quiet, config.method) as progress:
        result = run_config(
            config,
            out,
            dataset=dataset,
            stream=stream,
            bound=bound,
            progress=progress,
            resume=arguments.resume,
            checkpoint_seconds=arguments.checkpoint_seconds,
            tell=tell,
            at_once=arguments.at_once,
        )
    if not arguments.quiet:
        show(task_table(result), comparison_table([result]))
        say(f"result: {out / 'result.json'}")


def _run_seeds(arguments: argparse.Namespace, config: RunConfig) -> None:
    """Run all seeds and print how they compare; the failure of one leaves the others alone."""
    from distillmatch.methods import with_options
    from distillmatch.report.comparison import comparison_table
    from distillmatch.runs import Job, read_result
    from distillmatch.runs.log import event_files_in
    from distillmatch.suite.queue import error_file

    jobs = []
    for seed in dict.fromkeys(arguments.seeds):
        one, out = with_options(config.replace(seed=seed)), arguments.out
        folder = default_folder(one, arguments.stream) if out is None else out / f"seed-{seed}"
        jobs.append(Job(f"seed-{seed}", one, folder, arguments.stream))
    for job in jobs:
        _prepare(job.out, arguments.resume)
    seconds = {"checkpoint_seconds": arguments.checkpoint_seconds}
    engine = argparse.Namespace(**{**vars(ON_CPU), **seconds})
    folders = [job.out for job in jobs]
    with event_files_in(*folders) if arguments.tensorboard else nullcontext():
        queue = do_runs(jobs, arguments.out or RUNS, engine)
    done = [read_result(queue.entries[name].job.out) for name in queue.names("done")]
    if done and not arguments.quiet:
        show(comparison_table(done))
    for name in queue.names("failed"):
        entry = queue.entries[name]
        raise TrainingError(f"{name} failed: {entry.reason}; see {error_file(entry.job)}")


def _prepare(out: Path, resume: Resume) -> None:
    """Clear what a folder has of a run, or refuse it if there must be something and is nothing."""
    from distillmatch.runs.folder import RESULT, RunFolder, is_begun

    begun = (out / RESULT).exists() or is_begun(out)
    if begun and resume == "no":
        with RunFolder(out, tell) as folder:
            folder.start_over()
    if not begun and resume == "must":
        raise RunFolderError(f"{out}: there is no run to continue")
