"""The Ray engine: the same queue on a Ray cluster, one task a run.

Results come back with the tasks, so that storage need not be shared; where it is, a run that is
lost with its node goes on from its checkpoint on another.
"""

import logging
import os
import signal
import sys
import threading
import time
from importlib.util import find_spec
from typing import Any

from distillmatch.errors import ConfigError, TrainingError
from distillmatch.runs import Interrupted
from distillmatch.runs.interruption import STOPPING, StopRequest
from distillmatch.runs.side_by_side import CHECKPOINT_SECONDS, Job, run_side_by_side
from distillmatch.suite.local import Show
from distillmatch.suite.queue import Queue
from distillmatch.suite.worker import (
    ENVIRONMENT,
    ReportedProgress,
    decode_job,
    encode_job,
    failure,
)

TURN_SECONDS = 0.25
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
    ray.init(
        # Left to itself, Ray waits minutes for a cluster that was here once.
        address=os.environ.get("RAY_ADDRESS", "local"),
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray's own would end the process with code 15
    return ray, True


class Board:
    """An actor beside the driver that collects the events of tasks."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def put(self, event: dict[str, Any]) -> None:
        """Add an event."""
        self.events.append(event)

    def take(self) -> list[dict[str, Any]]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events


def do_run(record: dict[str, Any], board: Any, checkpoint_seconds: float) -> dict[str, Any]:
    """Do one run, as a Ray task; return the event that ended it, with its result."""
    ends: list[dict[str, Any]] = []
    jobs = iter([decode_job(record)])

    def finished(job: Job, result: dict[str, Any]) -> None:
        ends.append({"event": "finished", "result": result})

    try:
        run_side_by_side(
            lambda: next(jobs, None),
            1,
            finished=finished,
            failed=lambda job, error: ends.append(failure(job, error)),
            progress=lambda job: ReportedProgress(job.name, board.put.remote, PROGRESS_SECONDS),
            checkpoint_seconds=checkpoint_seconds,
            tell=lambda sentence: board.put.remote({"event": "tell", "sentence": sentence}),
        )
    except Interrupted as stop:
        if stop.exit_code == 128 + signal.SIGTERM:
            # It was for this process, whose node goes away; the run was noted as a run only.
            sys.exit(stop.exit_code)
        return {"event": "stopped"}
    return ends[0]


class RayEngine:
    """Does the runs of a queue as tasks on a Ray cluster, started here without `RAY_ADDRESS`.

    A run takes one CPU, or its share of a GPU if it is to use one.
    """

    def __init__(
        self,
        queue: Queue,
        show: Show,
        runs_per_gpu: int = 1,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ) -> None:
        self.queue = queue
        self.show = show
        self.runs_per_gpu = runs_per_gpu
        self.checkpoint_seconds = checkpoint_seconds
        self.tasks: dict[Any, str] = {}

    def run(self) -> None:
        """Work until all runs are done or have failed, or until a signal asks to stop."""
        self.queue.gather()
        ray, own = connected_ray()
        with StopRequest() as stop:
            try:
                self._run(ray, stop)
            except ray.exceptions.RayError as error:  # of the board: a run's own are handled
                raise TrainingError(
                    f"the Ray cluster was lost ({type(error).__name__}); what is done is kept, and "
                    "the same command continues from there"
                ) from error
            finally:
                if own:
                    ray.shutdown()

    def _run(self, ray: Any, stop: StopRequest) -> None:
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        board = ray.remote(Board).options(num_cpus=0, scheduling_strategy=here).remote()
        while not self.queue.over and stop.signal_number is None:
            while (job := self.queue.take()) is not None:
                self.tasks[self._submit(ray, job, board)] = job.name
            self._turn(ray, board)
        if stop.signal_number is not None and not self.queue.over:
            self.queue.tell(STOPPING)
            for task in self.tasks:
                ray.cancel(task, recursive=False)
            while self.tasks:
                self._turn(ray, board)
            raise self.queue.interrupted(stop.signal_number)

    def _submit(self, ray: Any, job: Job, board: Any) -> Any:
        on_gpu = job.config.device == "cuda" or (
            job.config.device == "auto" and ray.cluster_resources().get("GPU", 0) > 0
        )
        task = ray.remote(do_run).options(
            num_cpus=1,
            num_gpus=1 / self.runs_per_gpu if on_gpu else 0,
            max_retries=0,  # the queue knows what to do about a lost run
            runtime_env={"env_vars": ENVIRONMENT},
            name=job.name,
        )
        return task.remote(encode_job(job), board, self.checkpoint_seconds)

    def _turn(self, ray: Any, board: Any) -> None:
        """Wait a moment for tasks, and handle their events."""
        tasks, ended = list(self.tasks), []
        if tasks:
            ended, _ = ray.wait(tasks, num_returns=len(tasks), timeout=TURN_SECONDS)
        else:  # others have all that is left
            time.sleep(TURN_SECONDS)
        for event in ray.get(board.take.remote()):
            if event["event"] == "tell" or event["name"] in self.tasks.values():
                self.queue.handle(event)
        for task in ended:
            self._ended(ray, self.tasks.pop(task), task)
        self.queue.look_elsewhere()
        self.queue.tell_of_waiting()
        self.show(self.queue)

    def _ended(self, ray: Any, name: str, task: Any) -> None:
        try:
            end = ray.get(task)
        except ray.exceptions.TaskCancelledError:
            self.queue.put_back(name)
        except ray.exceptions.RayTaskError as error:
            self.queue.failed(name, f"{type(error.cause).__name__}: {error.cause}", str(error))
        except ray.exceptions.RayError as error:
            self.queue.lost(name, f"its worker was lost ({type(error).__name__})", RETRIES)
        else:
            self.queue.handle({**end, "name": name})
