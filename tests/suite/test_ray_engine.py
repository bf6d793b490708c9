"""The Ray engine on a real cluster of three nodes on this machine, one of them killed at work.

Needs the extra `ray`. The cluster's processes are children of this one, and a last check sees that
none of them is left.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_runs import COMMON, PYTHONPATH, without_times

from distillmatch.config import RunConfig
from distillmatch.runs import Interrupted, read_result, run
from distillmatch.runs.lock import NAME as LOCK
from distillmatch.runs.side_by_side import Job
from distillmatch.suite.ledger import Ledger
from distillmatch.suite.queue import Queue, work_off
from distillmatch.suite.ray_engine import RayWorkers

pytest.importorskip("ray", reason="the extra 'ray' is not installed")
psutil = pytest.importorskip("psutil", reason="Ray's own dependency psutil is missing")
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}
"""A dead node is noticed in seconds, where Ray would take half a minute."""


def checkpoints(job: Job) -> int:
    """Return the number of the newest checkpoint of a run."""
    found = (job.out / "checkpoints").glob("*.safetensors")
    return max((int(path.stem) for path in found), default=0)


@pytest.fixture(name="cluster", scope="module")
def cluster_of_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head without processors for the driver, and two nodes of one each."""
    from ray.cluster_utils import Cluster

    others = psutil.Process().children(recursive=True)
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", PYTHONPATH)
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster: Any = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH},
    )
    patch.setenv("RAY_ADDRESS", cluster.address)
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    started = [one for one in psutil.Process().children(recursive=True) if one not in others]
    yield cluster
    cluster.shutdown()
    patch.undo()
    _, left = psutil.wait_procs(started, timeout=60)
    assert not [process.name() for process in left]


def job_of(folder: Path, method: str, epochs: int) -> Job:
    config = RunConfig(**{**COMMON, "method": method, "epochs": epochs})
    return Job(method, config, folder / "work" / method)


def node_of(cluster: Any, job: Job) -> Any:
    """The node on which a run is under way: its raylet is the parent of the process in the lock."""
    worker = psutil.Process(int((job.out / LOCK).read_text().split()[0]))
    parents = {parent.pid for parent in worker.parents()}
    for node in cluster.worker_nodes:
        if any(info.process.pid in parents for info in node.all_processes["raylet"]):
            return node
    raise AssertionError("the run is on no node of the cluster")


def test_stopped_and_with_a_node_killed_at_work_all_runs_end_as_alone(
    cluster: Any, tmp_path: Path
) -> None:
    jobs = [job_of(tmp_path, "base", 180), job_of(tmp_path, "dm", 2), job_of(tmp_path, "dr", 2)]
    broken = RunConfig(**{**COMMON, "source": "small_runs:broken"})
    long, stopped, killed, said = jobs[0], list[int](), list[Any](), list[str]()

    def stop(queue: Queue) -> None:
        if not stopped and checkpoints(long) > 2:
            stopped.append(checkpoints(long))
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="stopped by SIGTERM with 1 run left") as end:
        work_off(Queue([long], None, said.append), RayWorkers(1, 1e-9), stop)
    assert end.value.exit_code == 143
    assert not (long.out / LOCK).exists()
    reached = checkpoints(long)
    assert reached > 2

    def kill_its_node(queue: Queue) -> None:
        if not killed and checkpoints(long) > reached + 2:
            killed.append(node_of(cluster, long))
            cluster.remove_node(killed[0], allow_graceful=False)

    ledger = Ledger(tmp_path / "ledger")
    jobs.append(Job("broken", broken, tmp_path / "work" / "broken"))
    queue = Queue(jobs, ledger, said.append)
    work_off(queue, RayWorkers(1, 1e-9), kill_its_node)
    assert killed and queue.names("done") == ["base", "dm", "dr"]
    assert queue.entries["broken"].reason == "SourceError: there are no images here"
    assert any(sentence.startswith("base: its worker was lost") for sentence in said)
    assert sum("base: continuing in task" in sentence for sentence in said) == 2
    assert len(ledger.results()) == 3
    for job in jobs[:3]:
        assert without_times(read_result(job.out)) == without_times(run(job.config))


LISTENING = """
from distillmatch.suite.ray_engine import connected_ray
ray, own = connected_ray()
import psutil  # from Ray
assert own
processes = psutil.Process().children(recursive=True)
sockets = [one for process in processes for one in process.net_connections(kind="inet")]
print(*{one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN})
ray.shutdown()
"""


def test_a_cluster_of_this_machine_alone_listens_on_the_loopback() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", LISTENING],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout and all("127.0.0.1" in address for address in done.stdout.split())
