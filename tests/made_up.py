"""Made-up results in the form of real ones, for tests of what is done with results."""

from collections.abc import Callable, Sequence
from math import isnan
from random import Random
from typing import Any

from distillmatch.config import RunConfig
from distillmatch.methods import find_method
from distillmatch.metrics import accuracy_matrix, backward_transfer, forgetting, overall_accuracies
from distillmatch.runs.result import FORMAT, VERSION, describe_stream, recorded_config
from distillmatch.suite.names import run_name
from distillmatch.suite.plan import plan

KEEPS = {"worldmatch": 0.93, "dm": 0.9, "gd": 0.82, "dr": 0.6, "e2e": 0.55, "base": 0.3}


def made_up_run(method: str, seed: int = 1, **config: Any) -> dict[str, Any]:
    """Make the result of a run of five tasks, unless told otherwise."""
    given: dict[str, Any] = {"source": "cifar100", "tasks": 5, **config}
    return made_up_result(RunConfig(method=method, seed=seed, **given))


def made_up_result(config: RunConfig, complete: bool = True) -> dict[str, Any]:
    """Make the result that a run of this configuration might have given."""
    random = Random(run_name(config))
    count = config.tasks or 20
    sizes = [100 // count] * count
    keeps = min(0.95, KEEPS.get(config.method, 0.9) + config.coreset / 1800)
    first = [60 + random.uniform(-8, 8) for _ in range(count)]
    bound = config.method in ("offline", "offline-unlabeled")
    rows = [
        [
            max(1.0, 78 - 22 * i / count + random.uniform(-1, 1))
            if bound
            else max(0.5, first[n] * keeps ** (i - n) - 0.8 * i + random.uniform(-1, 1))
            for n in range(i + 1)
        ]
        for i in range(count if complete else count - 1)
    ]
    seen = accuracy_matrix(rows)
    accuracies = [float(a) for a in overall_accuracies(seen, [1000] * len(rows))]
    whole = [[None if isnan(v) else float(v) for v in row] for row in seen]
    tasks = [_task(config, number, accuracies, random, count) for number in range(len(rows))]
    return {
        "format": FORMAT,
        "version": VERSION,
        "config": recorded_config(config),
        "options": find_method(config.method).Options(**config.options).model_dump(mode="json"),
        "stream": describe_stream(config, "made up", count),
        "method": config.method,
        "seed": config.seed,
        "uses_truth": config.options.get("accept") == "truth",
        "classes": [f"class {number}" for number in range(100)],
        "task_sizes": sizes,
        "versions": {"python": "3", "distillmatch": "0"},
        "machine": {
            "device": "CPU",
            "precision": "float32",
            "system": "Linux",
            "cores": 2,
        },
        "commit": {"id": "0123456789abcdef", "dirty": config.seed == 2},
        "complete": complete,
        "metrics": {
            "A_N": accuracies[-1],
            "omega": None,
            "omega_double_sum": None,
            "omega_curve": None,
            "bwt": backward_transfer(seen),
            "fgt": forgetting(seen, sizes[: len(rows)]),
            "accuracies": accuracies,
        },
        "R": whole,
        "A": whole,
        "P": [[*row[:i], accuracies[i], *row[i + 1 :]] for i, row in enumerate(whole)],
        "tasks": tasks,
        "seconds": {"classifier": 80.0, "total": random.uniform(60, 5000)},
        "memory": {
            "stored_images": config.coreset,
            "stored_bytes": 3072 * config.coreset,
            "peak_device_bytes": None if config.source == "shapes" else 5 * 2**30,
        },
    }


def _task(
    config: RunConfig, number: int, accuracies: Sequence[float], random: Random, count: int
) -> dict[str, Any]:
    gated = config.method == "dm" and config.options.get("pseudo_labels", True)
    last = number == count - 1
    used, left = gated and number > 0, gated and not last
    return {
        "task": number + 1,
        "test_images": 1000,
        "accuracy": accuracies[number],
        "detector": {
            "auroc": 66 - 8 * number / count + random.uniform(-1, 1) if left else None,
            "tpr": 50.0 if left else None,
            "fpr": 40.0 if left else None,
            "threshold": 0.5 if gated else None,
            "epsilon": 0.08 if gated else None,
            "accepted": 40 + random.uniform(-3, 3) if used else None,
            "accepted_past": 10 + 80 * number / count + random.uniform(-3, 3) if used else None,
            "pseudo_labels_right": 8 + 35 * number / count if used else None,
        },
        "losses": {"classifier": {"loss": [2.0, 1.0]}},
        "seconds": {"classifier": 8.0},
        "stored_images": config.coreset,
        "stored_bytes": 3072 * config.coreset,
    }


def made_up_ledger(experiments: Sequence[Any], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Make a result for every run of some experiments, their bounds among them."""
    return [made_up_result(run.config) for run in plan(experiments, seeds)]


def changing(*keys: str | int, to: Any) -> Callable[[Any], None]:
    """Return what changes one value within a record, or removes it for an ellipsis."""

    def change(record: Any) -> None:
        for key in keys[:-1]:
            record = record[key]
        if to is ...:
            del record[keys[-1]]
        else:
            record[keys[-1]] = to

    return change
