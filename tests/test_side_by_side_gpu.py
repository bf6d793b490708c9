"""Runs side by side on a GPU, each on its own stream: to the bit what each gives alone."""

from pathlib import Path
from typing import Any

import pytest
from conftest import make_dataset
from interrupted_runs import interrupted as tiny
from small_runs import without_times

from distillmatch.config import StreamConfig
from distillmatch.runs import Job, run, run_side_by_side
from distillmatch.sources import Dataset

pytestmark = pytest.mark.gpu
SOURCE = "test_side_by_side_gpu:noise"
ON_GPU: dict[str, Any] = {
    "device": "cuda", "learning_rate": 0.01, "source": SOURCE, "batch": 16, "unlabeled_batch": 16,
}  # fmt: skip


def noise(config: StreamConfig | None = None) -> Dataset:
    return make_dataset(classes=6, per_class=40, parents=3, noise=True)


def without_memory(result: dict[str, Any]) -> dict[str, Any]:
    """Leave out the peak, which counts all runs of the process."""
    memory = {k: v for k, v in result["memory"].items() if k != "peak_device_bytes"}
    return {**without_times(result), "memory": memory}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["base", "dm"])
def test_three_seeds_at_once_give_what_each_gives_alone(
    method: str, precision: str, tmp_path: Path
) -> None:
    seeds_give_what_they_give_alone(tmp_path, method=method, precision=precision)


@pytest.mark.parametrize("pseudo_labels", [True, False])
def test_networks_that_are_asked_in_steps_and_beside_them_say_what_they_say_alone(
    pseudo_labels: bool, tmp_path: Path
) -> None:
    # In bfloat16 programs of a normalization wait for each other, on two streams at once.
    options = {"options": {"pseudo_labels": pseudo_labels}, "epochs": 12}
    seeds_give_what_they_give_alone(tmp_path, method="dm", precision="bfloat16", **options)


def test_runs_that_train_more_often_than_there_are_streams_give_what_they_give_alone(
    tmp_path: Path,
) -> None:
    # Six tasks with two trainings each, three times: torch has 32 streams.
    seeds_give_what_they_give_alone(tmp_path, method="dm", tasks=6, epochs=12)


def seeds_give_what_they_give_alone(tmp_path: Path, **options: Any) -> None:
    configs = [tiny(**{**ON_GPU, **options}, seed=seed) for seed in (1, 2, 3)]
    jobs = [Job(f"seed-{c.seed}", c, tmp_path / f"seed-{c.seed}") for c in configs]
    waiting, results = iter(jobs), {}
    failures: list[Exception] = []
    run_side_by_side(
        lambda: next(waiting, None),
        3,
        finished=lambda job, result: results.update({job.name: result}),
        failed=lambda job, error: failures.append(error),
    )
    assert not failures
    for job in jobs:
        alone = run(job.config, dataset=noise())
        assert without_memory(results[job.name]) == without_memory(alone)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_stages_at_once_give_what_they_give_in_a_row(precision: str, tmp_path: Path) -> None:
    config = tiny(**ON_GPU, method="offline", precision=precision)
    in_a_row = run(config, tmp_path / "row", at_once=1)
    beside = run(config, tmp_path / "beside")
    assert without_memory(beside) == without_memory(in_a_row)
    assert not (tmp_path / "beside" / "stages").exists()
