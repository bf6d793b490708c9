"""Golden runs: what each method and recipe computes in a tiny run in float64 on the CPU.

`tests/golden/runs.json` holds the loss of every epoch and the accuracies of whole runs. A change
that is meant to alter them records them again by `python tests/test_golden.py` and says in its
commit what changed and why.
"""

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_dataset
from torch import nn

from distillmatch.config import RunConfig
from distillmatch.engine import Engine, Placement
from distillmatch.runs.result import Tally, task_row
from distillmatch.streams import build_stream

FILE = Path(__file__).parent / "golden" / "runs.json"
TINY = {
    "tasks": 3,
    "labels_per_class": 5,
    "network": "wrn-10-1",
    "epochs": 4,
    "batch": 8,
    "unlabeled_batch": 12,
    "seed": 3,
}
RECIPES = ("paper", "as-written")
LOW: dict[str, Any] = {
    "consistency_threshold": 0.15
}  # so that some strong views count in so short a run
RUNS: dict[str, dict[str, Any]] = {
    "base": {"method": "base"},
    "base, coreset": {"method": "base", "coreset": 9},
    "e2e": {"method": "e2e"},
    "e2e, coreset": {"method": "e2e", "coreset": 9},
    "dr": {"method": "dr"},
    "dr, coreset": {"method": "dr", "coreset": 9},
    "gd": {"method": "gd"},
    "gd, coreset": {"method": "gd", "coreset": 9},
    "gd without calibration, coreset": {
        "method": "gd",
        "coreset": 9,
        "options": {"calibration": False},
    },
    "dm": {"method": "dm", "options": LOW},
    "dm, coreset": {
        "method": "dm",
        "coreset": 9,
        "options": {"true_positive_rate": 0.3, **LOW},
    },
    "dm without pseudo-labels, coreset": {
        "method": "dm",
        "coreset": 9,
        "options": {"pseudo_labels": False, **LOW},
    },
    "dm without class balancing": {"method": "dm", "options": {"class_balancing": False, **LOW}},
    "dm without consistency": {"method": "dm", "options": {"consistency_weight": 0.0}},
    "dm without distillation": {"method": "dm", "options": {"distillation_weight": 0.0, **LOW}},
    "offline": {"method": "offline"},
    "offline-unlabeled": {"method": "offline-unlabeled"},
}


class Float64(Placement):
    """The CPU in float64, so that another processor computes the same to many digits."""

    def place(self, network: nn.Module) -> nn.Module:
        return super().place(network.double())

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()


def config_of(recipe: str, name: str) -> RunConfig:
    return RunConfig(**{**TINY, "recipe": recipe, **RUNS[name]})


def golden_run(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    placement = Float64(torch.device("cpu"), torch.float64)
    monkeypatch.setattr(Placement, "of", lambda *_: placement)
    dataset = make_dataset(classes=9, per_class=12, test_per_class=10, noise=True)
    engine = Engine(config, dataset, build_stream(dataset, config))
    tally = Tally(engine.stream.task_sizes)
    for outcome in engine.run():
        tally.add(task_row(outcome, engine.stream.task_sizes))
    losses = [
        {name: terms["loss"] for name, terms in task["losses"].items()} for task in tally.tasks
    ]
    accepted = [task["detector"]["accepted"] for task in tally.tasks]
    return {"losses": losses, "accuracies": tally.accuracies, "accepted": accepted}


def golden_name(recipe: str, name: str) -> str:
    return f"{recipe}: {name}"


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_tiny_run_is_as_recorded(recipe: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = json.loads(FILE.read_text())[golden_name(recipe, name)]
    found = golden_run(config_of(recipe, name), monkeypatch)
    assert found["accuracies"] == pytest.approx(recorded["accuracies"])
    assert found["accepted"] == pytest.approx(recorded["accepted"])
    for task, (now, then) in enumerate(zip(found["losses"], recorded["losses"], strict=True), 1):
        assert now.keys() == then.keys()
        for training, losses in then.items():
            assert now[training] == pytest.approx(losses, rel=1e-6), (task, training)


def record() -> None:
    """Write the file anew, and say which runs changed."""
    before = json.loads(FILE.read_text()) if FILE.exists() else {}
    runs = {}
    for recipe in RECIPES:
        for name in RUNS:
            with pytest.MonkeyPatch.context() as patch:
                key = golden_name(recipe, name)
                runs[key] = golden_run(config_of(recipe, name), patch)
            if runs[key] != before.get(key):
                print("changed:", key)
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    record()
