"""Workers on a Ray cluster: one task a run.

Results come back with the tasks, so that storage need not be shared; where it is, a run that is
lost with its node goes on from its checkpoint on another.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from distillmatch.errors import ConfigError, TrainingError
from distillmatch.runs import Interrupted
from distillmatch.runs.runner import CHECKPOINT_SECONDS
from distillmatch.runs.side_by_side import Job
from distillmatch.suite.local import ENVIRONMENT
from distillmatch.suite.worker import Event, run_jobs

PROGRESS_SECONDS = 2.0
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Off, Ray listens on the loopback on every system, as it does by default on Windows and macOS."""
RETRIES = 3
"""Nodes of a cluster come and go, whatever they run."""


def require_ray() -> None:
    """Refuse to begin without the extra."""
    if find_spec("ray") is None:
        raise ConfigError("engine 'ray' needs Ray: pip install 'distillmatch[ray]'")


def connected_ray() -> tuple[Any, bool]:
    """Return Ray, connected to the cluster that `RAY_ADDRESS` names, and whether it was just now.

    Without an address, one is started on this machine whose ports listen on the loopback alone,
    because whoever reaches them can run code here.
    """
    if "RAY_ADDRESS" not in os.environ:
        os.environ.setdefault(LOOPBACK, "0")  # read by the first import of Ray
    import ray  # noqa: PLC0415 - an extra

    if ray.is_initialized():
        return ray, False
    handler = signal.getsignal(signal.SIGTERM)
    # Left to itself, Ray waits minutes for a cluster that was here once.
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray's own would end the process with code 15
    return ray, True


class _Board:
    """An actor beside the driver that collects the events of tasks."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def put(self, event: Event) -> None:
        self.events.append(event)

    def take(self) -> list[Event]:
        events, self.events = self.events, []
        return events


def _do_run(job: Job, board: Any, checkpoint_seconds: float) -> Event:
    """Do one run, as a Ray task; return the event that ended it, with its result."""
    ends, jobs = list[Event](), iter([job])

    def send(event: Event) -> None:
        if event.kind in ("progress", "say"):
            board.put.remote(event)
        else:
            ends.append(event)

    try:
        run_jobs(lambda: next(jobs, None), send, 1, checkpoint_seconds, PROGRESS_SECONDS)
    except Interrupted as stop:
        if stop.exit_code == 128 + signal.SIGTERM:
            # It was for this process, whose node goes away; the run was noted as a run only.
            sys.exit(stop.exit_code)
        return Event("put_back", job.name)
    return ends[0]


class RayWorkers:
    """Tasks on a Ray cluster. A run takes one CPU, or its share of a GPU if it is to use one."""

    def __init__(
        self, runs_per_gpu: int = 1, checkpoint_seconds: float = CHECKPOINT_SECONDS
    ) -> None:
        self.runs_per_gpu = runs_per_gpu
        self.checkpoint_seconds = checkpoint_seconds
        self._ray, self._is_own = connected_ray()
        self._tasks: dict[Any, str] = {}
        here = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            self._ray.get_runtime_context().get_node_id(), soft=False
        )
        board = self._ray.remote(_Board).options(num_cpus=0, scheduling_strategy=here)
        self._board = board.remote()

    def has_room(self) -> bool:
        """Return that Ray takes any number of runs, and lets them wait."""
        return True

    def start(self, job: Job) -> None:
        """Submit a run."""
        has_gpus = self._ray.cluster_resources().get("GPU", 0) > 0
        on_gpu = job.config.device == "cuda" or (job.config.device == "auto" and has_gpus)
        task = self._ray.remote(_do_run).options(
            num_cpus=1,
            num_gpus=1 / self.runs_per_gpu if on_gpu else 0,
            max_retries=0,  # the queue knows what to do about a lost run
            runtime_env={"env_vars": ENVIRONMENT},
            name=job.name,
        )
        self._tasks[task.remote(job, self._board, self.checkpoint_seconds)] = job.name

    def events(self, seconds: float) -> Iterator[Event]:
        """Wait at most so long, and return what happened."""
        tasks, ended = list(self._tasks), []
        if tasks:
            ended, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=seconds)
        else:  # others have all that is left
            time.sleep(seconds)
        try:
            told = self._ray.get(self._board.take.remote())
        except self._ray.exceptions.RayError as error:
            raise TrainingError(
                f"the Ray cluster was lost ({type(error).__name__}); what is done is kept, and "
                "the same command continues from there"
            ) from error
        yield from (one for one in told if one.kind == "say" or one.name in self._tasks.values())
        yield from (self._end(self._tasks.pop(task), task) for task in ended)

    def stop(self) -> Iterator[Event]:
        """Let all runs stop where they can be resumed, and those that wait not begin."""
        for task in self._tasks:
            self._ray.cancel(task, recursive=False)
        while self._tasks:
            yield from self.events(PROGRESS_SECONDS)

    def close(self) -> None:
        """Shut a cluster down that was started here."""
        if self._is_own:
            self._ray.shutdown()

    def _end(self, name: str, task: Any) -> Event:
        errors = self._ray.exceptions
        try:
            end: Event = self._ray.get(task)
        except errors.TaskCancelledError:
            return Event("put_back", name)
        except errors.RayTaskError as error:
            reason = f"{type(error.cause).__name__}: {error.cause}"
            return Event("failed", name, (reason, str(error)))
        except errors.RayError as error:
            return Event("lost", name, (f"its worker was lost ({type(error).__name__})", RETRIES))
        return end
