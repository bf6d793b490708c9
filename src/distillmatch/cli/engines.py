"""Options that say where the runs of a queue are made, and the engine that they describe."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distillmatch.config import LOCATION_KEYS, RunConfig
from distillmatch.errors import ConfigError

if TYPE_CHECKING:
    from distillmatch.suite.local import LocalEngine, Show
    from distillmatch.suite.queue import Queue
    from distillmatch.suite.ray_engine import RayEngine


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of an engine."""
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="processes on this machine, or a Ray cluster (default: local)",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="processes (default: one a core, or one a GPU)"
    )
    parser.add_argument(
        "--runs-per-gpu",
        type=int,
        metavar="N",
        help="runs at once on a GPU (default: 1)",
    )
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=60.0,
        metavar="X",
        help="each run writes a checkpoint so often; 0: only after each task (default: 60)",
    )


def check_engine_options(arguments: argparse.Namespace) -> None:
    """Refuse what no engine can be told, and say that an extra is missing."""
    from distillmatch.suite.ray_engine import require_ray

    for name in ("jobs", "runs_per_gpu"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}")
    if not arguments.checkpoint_seconds >= 0:
        raise ConfigError(
            f"checkpoint_seconds must be at least 0, not {arguments.checkpoint_seconds!r}"
        )
    if arguments.engine == "ray":
        if arguments.jobs is not None:
            raise ConfigError(
                "--jobs goes with --engine local; a Ray cluster has as many as its CPUs and GPUs "
                "take"
            )
        require_ray()


def refuse_without_gpu(arguments: argparse.Namespace, configs: Sequence[RunConfig]) -> None:
    """Refuse runs that count on a GPU where none is used for them: they would take days."""
    counts = arguments.engine == "local" and arguments.runs_per_gpu is not None
    if counts and configs and not _use_a_gpu(configs):
        raise ConfigError(
            f"--runs-per-gpu {arguments.runs_per_gpu} was given, but no GPU is found or meant for "
            "these runs; on a CPU --jobs says how many there are at once"
        )


def configs_left(queue: "Queue") -> list[RunConfig]:
    """Return the configurations of the runs that are not done."""
    return [entry.job.config for entry in queue.entries.values() if entry.state != "done"]


def _use_a_gpu(configs: Iterable[RunConfig]) -> bool:
    from distillmatch.engine import Placement

    return any(Placement.of(config).device.type == "cuda" for config in configs)


def make_engine(
    arguments: argparse.Namespace, queue: "Queue", log_folder: Path, show: "Show"
) -> "LocalEngine | RayEngine":
    """Return what works off the queue: on all GPUs if a run is to use one, else on all cores."""
    from distillmatch.suite.local import Crew, LocalEngine
    from distillmatch.suite.ray_engine import RayEngine

    seconds, per_gpu = arguments.checkpoint_seconds, arguments.runs_per_gpu or 1
    if arguments.engine == "ray":
        return RayEngine(queue, show, per_gpu, seconds)
    crew = Crew.on_cpu(arguments.jobs)
    if _use_a_gpu(configs_left(queue)):
        import torch

        crew = Crew.on_gpus(torch.cuda.device_count(), arguments.jobs, per_gpu)
    return LocalEngine(queue, crew, log_folder, show, seconds)


def with_absolute_locations(config: RunConfig) -> RunConfig:
    """Return the configuration as a process that starts in another folder needs it."""
    return config.replace(**{key: _absolute(getattr(config, key)) for key in LOCATION_KEYS})


def _absolute(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(path.resolve() for path in value)
    return None if value is None else value.resolve()
