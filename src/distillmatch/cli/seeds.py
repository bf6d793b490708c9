"""`distillmatch run --seeds`: several seeds of one configuration in one process."""

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from distillmatch.cli.progress import LiveProgress
from distillmatch.config import RunConfig
from distillmatch.errors import ConfigError
from distillmatch.terminal import plain_console

NOT_TOGETHER = ("seed", "bound", "at_once")
"""Options of a single run."""


def add_seed_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument(
        "--seeds",
        metavar="N,N,…",
        help="run each of these seeds, in DIR/seed-N, and compare them at the end",
    )
    parser.add_argument(
        "--runs-per-gpu",
        type=int,
        metavar="K",
        help="with --seeds: runs at once in this process, side by side (default: 1)",
    )


def wants_seeds(arguments: argparse.Namespace) -> bool:
    """Tell whether several seeds are asked for; refuse what does not go with that."""
    if arguments.seeds is None:
        if arguments.runs_per_gpu is not None:
            raise ConfigError("--runs-per-gpu goes with --seeds only")
        return False
    for name in NOT_TOGETHER:
        if getattr(arguments, name, None) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} cannot be given together with --seeds")
    return True


def run_seeds(
    arguments: argparse.Namespace, config: RunConfig, tell: Callable[[str], None]
) -> None:
    """Run all seeds, then print how they compare; a seed that fails leaves the others alone."""
    from distillmatch.report.comparison import comparison_table
    from distillmatch.runs import Interrupted, Job, run_side_by_side
    from distillmatch.runs.progress import SharedProgress
    from distillmatch.runs.tensorboard import TensorBoard
    from distillmatch.runs.threads import end_process

    seeds = _seeds(arguments.seeds)
    jobs = [
        Job(f"seed-{seed}", config.replace(seed=seed), arguments.out / f"seed-{seed}",
            arguments.stream)
        for seed in seeds
    ]  # fmt: skip
    results: dict[str, dict[str, Any]] = {}
    failures: dict[str, Exception] = {}
    live = LiveProgress(f"{config.method}, {len(seeds)} seeds")
    shared = None if arguments.quiet else SharedProgress(live, len(seeds))
    waiting = iter(jobs)
    try:
        with ExitStack() as events:
            for job in jobs if arguments.tensorboard else ():
                events.enter_context(TensorBoard(job.out))
            run_side_by_side(
                lambda: next(waiting, None),
                1 if arguments.runs_per_gpu is None else arguments.runs_per_gpu,
                finished=lambda job, result: results.update({job.name: result}),
                failed=lambda job, error: failures.update({job.name: error}),
                progress=None if shared is None else lambda job: shared.part(),
                checkpoint_seconds=arguments.checkpoint_seconds,
                resume=arguments.resume,
                tell=tell,
            )
    except Interrupted as stop:
        tell(str(stop))
        end_process(stop)
    finally:
        live.stop()
    if results and not arguments.quiet:
        plain_console().print(
            comparison_table([results[job.name] for job in jobs if job.name in results])
        )
    for name, error in failures.items():
        tell(f"{name} failed: {' '.join(str(error).split())}")
    if failures:
        raise next(iter(failures.values()))


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds must be whole numbers with commas, not '{text}'") from None
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds must be different from each other, not '{text}'")
    return seeds
