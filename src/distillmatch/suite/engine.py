"""Working off a queue, by processes of this machine or on a Ray cluster."""

import signal
from collections.abc import Callable
from contextlib import closing

from distillmatch.runs import Interrupted
from distillmatch.runs.interruption import STOPPING, StopRequest
from distillmatch.suite.local import LocalWorkers
from distillmatch.suite.queue import Queue
from distillmatch.suite.ray_engine import RayWorkers

TURN_SECONDS = 0.25


def work_off(
    queue: Queue, workers: LocalWorkers | RayWorkers, show: Callable[[Queue], None]
) -> None:
    """Do the runs of a queue until all are done or have failed, or a signal asks to stop.

    `show` is given the queue a few times a second. Runs that are stopped write checkpoints, and the
    same call goes on from them.
    """
    with closing(workers):
        queue.gather()
        if isinstance(workers, LocalWorkers):
            queue.check_sources()
        with StopRequest() as stop:
            while not queue.over and stop.signal_number is None:
                while workers.has_room() and (job := queue.take()) is not None:
                    workers.start(job)
                for event in workers.events(TURN_SECONDS):
                    queue.handle(event)
                queue.look_elsewhere()
                show(queue)
            if stop.signal_number is None or queue.over:
                return
            queue.tell(STOPPING)
            for event in workers.stop():
                if event.details != (STOPPING,):  # of a worker that says so too
                    queue.handle(event)
            left = queue.count("waiting", "running", "elsewhere")
            raise Interrupted(
                f"stopped by {signal.Signals(stop.signal_number).name}, {left} "
                f"run{'s' if left != 1 else ''} left; the same command continues from there",
                stop.signal_number,
            )
