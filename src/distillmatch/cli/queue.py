"""What commands that make many runs share: where the runs are made, and progress."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distillmatch.cli.options import add_common
from distillmatch.cli.parser import Parser, option
from distillmatch.config import LOCATION_KEYS, RunConfig
from distillmatch.config.base import Count
from distillmatch.errors import ConfigError
from distillmatch.files import check_writable
from distillmatch.terminal import LiveProgress

if TYPE_CHECKING:
    from distillmatch.runs.side_by_side import Job
    from distillmatch.suite.ledger import Ledger
    from distillmatch.suite.queue import Queue

ON_CPU = argparse.Namespace(engine="local", jobs=None, runs_per_gpu=None, checkpoint_seconds=60.0)


def add_engine_options(parser: Parser) -> None:
    """Add the options that say where runs are made."""
    group = parser.add_argument_group("where to run")
    said = "processes on this machine, or a Ray cluster"
    option(group, "--engine", said, Literal["local", "ray"], "local")
    option(group, "--jobs N", "processes (default: one per core or GPU)", Count)
    option(group, "--runs-per-gpu N", "runs at once on a GPU (default: 1)", Count)
    add_common(group, "checkpoint_seconds")


def check_engine_options(arguments: argparse.Namespace, configs: Sequence[RunConfig]) -> None:
    """Refuse options that do not go with the engine or these runs, and name a missing extra."""
    if arguments.engine == "ray":
        from distillmatch.suite.ray_engine import require_ray

        if arguments.jobs is not None:
            raise ConfigError(
                "--jobs goes with --engine local; a Ray cluster starts as many as its CPUs and "
                "GPUs allow"
            )
        require_ray()
    elif arguments.runs_per_gpu is not None and not _use_a_gpu(configs):
        raise ConfigError(
            f"--runs-per-gpu {arguments.runs_per_gpu} was given, but these runs use no GPU; on a "
            "CPU, --jobs says how many run at once"
        )


def do_runs(
    jobs: "Sequence[Job]",
    log_folder: Path,
    arguments: argparse.Namespace = ON_CPU,
    ledger: "Ledger | None" = None,
) -> "Queue":
    """Do runs with progress shown: on all GPUs if a run uses one, else on all cores, or by Ray."""
    import torch

    from distillmatch.suite.local import LocalWorkers, on_cpu, on_gpus
    from distillmatch.suite.queue import Queue, work_off
    from distillmatch.suite.ray_engine import RayWorkers

    with QueueProgress() as progress:
        queue = Queue(jobs, ledger, progress.tell)
        if queue.over:
            return queue
        check_writable(log_folder, "making the folder of the runs")
        seconds, per_gpu = arguments.checkpoint_seconds, arguments.runs_per_gpu or 1
        workers: LocalWorkers | RayWorkers
        if arguments.engine == "ray":
            workers = RayWorkers(per_gpu, seconds)
        else:
            left = [entry.job.config for entry in queue.entries.values() if entry.state != "done"]
            places = on_cpu(arguments.jobs)
            if _use_a_gpu(left):
                places = on_gpus(torch.cuda.device_count(), arguments.jobs)
            workers = LocalWorkers(places, log_folder, per_gpu, seconds)
        work_off(queue, workers, progress.show)
        return queue


def with_absolute_locations(config: RunConfig) -> RunConfig:
    """Return the configuration for a process that starts in another folder."""

    def absolute(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(path.resolve() for path in value)
        return value and value.resolve()

    return config.replace(**{key: absolute(getattr(config, key)) for key in LOCATION_KEYS})


def _use_a_gpu(configs: Sequence[RunConfig]) -> bool:
    from distillmatch.engine import Placement

    return any(Placement.of(config).device.type == "cuda" for config in configs)


class QueueProgress(LiveProgress):
    """Shows how the runs of a queue stand, and the time left for all of them."""

    def __init__(self) -> None:
        super().__init__("distillmatch")
        self._changed = False

    def show(self, queue: "Queue") -> None:
        """Show how the runs stand; without a terminal, whenever one begins or ends."""
        total, done = queue.work()
        if self.total is None:  # not before: fetching images has bars of its own
            self.start(total, done)
        title = f"distillmatch: {describe(queue)}"
        self._changed = title != self.title
        self.title, self.total = title, total
        self.update(done)

    def is_due(self, before: float) -> bool:
        """Return whether runs began or ended."""
        return self._changed


def describe(queue: "Queue") -> str:
    """Return how many runs are done, under way here and elsewhere, and failed."""
    # On a cluster, others wait for their turn.
    begun = sum(e.state == "running" and e.has_begun for e in queue.entries.values())
    counts = {"running": begun, "elsewhere": queue.count("elsewhere")}
    counts["failed"] = queue.count("failed")
    words = [f"{count} {state}" for state, count in counts.items() if count]
    return ", ".join([f"{queue.count('done')} of {len(queue.entries)} runs done", *words])
