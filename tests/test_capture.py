"""A step that cannot be captured runs eagerly, and the run says why."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from conftest import make_dataset

from distillmatch.config import RunConfig
from distillmatch.engine import Engine
from distillmatch.engine import steps as steps_module
from distillmatch.engine.data import Epoch
from distillmatch.engine.steps import EpochSteps, Step
from distillmatch.methods import Batch, TaskInfo
from distillmatch.methods.base import Base
from distillmatch.streams import build_stream


class Refusing:
    """Stands in for the captured step of a method that reads a number from the device."""

    def __init__(self, step: Any, example: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore about it")


class OnCuda:
    """Stands in for a step on a GPU: its loss is the sum of the labels."""

    placement = SimpleNamespace(captures=True)
    training = SimpleNamespace(name="classifier")

    def __call__(self, batch: Batch) -> torch.Tensor:
        return batch.labels.sum()


def test_a_step_that_cannot_be_captured_runs_eagerly_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps_module, "CapturedStep", Refusing)
    rows = torch.arange(12.0)
    epoch = Epoch(rows, rows, rows[:0], sizes=(5, 5, 2), unlabeled_sizes=(0, 0, 0))
    steps = EpochSteps(cast(Step, OnCuda()))
    with pytest.warns(UserWarning, match=r"'classifier' cannot be captured .* is capturing$"):
        assert steps.run(epoch).tolist() == [10, 35, 21]
    assert steps.run(epoch).tolist() == [10, 35, 21], "it is not tried again"


class Reading(Base):
    """Base with a loss that asks the device for a number."""

    def loss(self, batch: Batch, task: TaskInfo) -> torch.Tensor:
        value = super().loss(batch, task)
        return value if value.item() > 0 else 2 * value


@pytest.mark.gpu
def test_a_method_that_reads_from_the_device_still_learns_on_a_gpu() -> None:
    config = RunConfig(
        method="test_capture:Reading", network="wrn-10-1", epochs=2, tasks=2, device="cuda"
    )
    dataset = make_dataset(classes=6, parents=3, noise=True)
    with pytest.warns(UserWarning, match="cannot be captured"):
        outcomes = list(Engine(config, dataset, build_stream(dataset, config)).run())
    assert len(outcomes) == 2
