"""What commands that work off a queue of runs share: where the runs are made, and progress."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distillmatch.cli.options import add_checkpoint_seconds, at_least
from distillmatch.config import LOCATION_KEYS, RunConfig
from distillmatch.errors import ConfigError
from distillmatch.terminal import LiveProgress

if TYPE_CHECKING:
    from distillmatch.suite.local import LocalEngine, Show
    from distillmatch.suite.queue import Queue
    from distillmatch.suite.ray_engine import RayEngine


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where runs are made."""
    group = parser.add_argument_group("where to run")
    group.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        metavar="local|ray",
        help="processes on this machine, or a Ray cluster (default: local)",
    )
    group.add_argument(
        "--jobs",
        type=at_least(1),
        metavar="N",
        help="processes (default: one a core or a GPU)",
    )
    group.add_argument(
        "--runs-per-gpu", type=at_least(1), metavar="N", help="runs at once on a GPU (default: 1)"
    )
    add_checkpoint_seconds(group)


def check_engine_options(arguments: argparse.Namespace) -> None:
    """Refuse options of the other engine, and say which extra is missing."""
    from distillmatch.suite.ray_engine import require_ray

    if arguments.engine == "ray":
        if arguments.jobs is not None:
            raise ConfigError(
                "--jobs goes with --engine local; a Ray cluster starts as many as its CPUs and "
                "GPUs allow"
            )
        require_ray()


def refuse_without_gpu(arguments: argparse.Namespace, configs: Sequence[RunConfig]) -> None:
    """Refuse `--runs-per-gpu` if no run would use a GPU: they would take days."""
    counts = arguments.engine == "local" and arguments.runs_per_gpu is not None
    if counts and configs and not _use_a_gpu(configs):
        raise ConfigError(
            f"--runs-per-gpu {arguments.runs_per_gpu} was given, but these runs use no GPU; on a "
            "CPU, --jobs says how many run at once"
        )


def configs_left(queue: "Queue") -> list[RunConfig]:
    """Return the configurations of the runs that are not done."""
    return [entry.job.config for entry in queue.entries.values() if entry.state != "done"]


def make_engine(
    arguments: argparse.Namespace, queue: "Queue", log_folder: Path, show: "Show"
) -> "LocalEngine | RayEngine":
    """Return what works off the queue: on all GPUs if a run uses one, else on all cores."""
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
    """Return the configuration for a process that starts in another folder."""

    def absolute(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(path.resolve() for path in value)
        return None if value is None else value.resolve()

    return config.replace(**{key: absolute(getattr(config, key)) for key in LOCATION_KEYS})


def _use_a_gpu(configs: Sequence[RunConfig]) -> bool:
    from distillmatch.engine import Placement

    return any(Placement.of(config).device.type == "cuda" for config in configs)


class QueueProgress(LiveProgress):
    """Shows how the runs of a queue stand, and the time left for all of them."""

    def __init__(self) -> None:
        super().__init__("distillmatch")
        self._most_running = -1
        self._changed = False

    def show(self, queue: "Queue") -> None:
        """Show how the runs stand; without a terminal, whenever one begins or ends."""
        wanted, done = queue.work()
        running = begun_runs(queue)
        if self._most_running < 0:  # not before: fetching images has bars of its own
            self.start(wanted, done)
        if running > self._most_running or not self._done_before:
            # The pace counts from when as many runs as ever are at work.
            self._most_running = max(running, self._most_running)
            self.done = done
            self.judge_from_here()
        title = f"distillmatch: {describe(queue)}"
        self._changed, self.title, self.total = title != self.title, title, wanted
        self.update(done)

    def is_due(self, before: float) -> bool:
        """Return whether runs began or ended."""
        return self._changed


def describe(queue: "Queue") -> str:
    """Return how many runs are done, under way here and elsewhere, and failed."""
    counts = {"running": begun_runs(queue), "elsewhere": queue.count("elsewhere")}
    counts["failed"] = queue.count("failed")
    words = [f"{count} {state}" for state, count in counts.items() if count]
    return ", ".join([f"{queue.count('done')} of {len(queue.entries)} runs done", *words])


def begun_runs(queue: "Queue") -> int:
    """Count the runs under way here; on a cluster, others wait for their turn."""
    return sum(e.state == "running" and e.work is not None for e in queue.entries.values())
