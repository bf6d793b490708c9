"""A step that cannot be captured runs eagerly, and the run says why."""

import pytest
import torch
from conftest import make_dataset

from distillmatch.config import RunConfig
from distillmatch.engine import Engine
from distillmatch.methods import Batch, TaskInfo
from distillmatch.methods.base import Base
from distillmatch.streams import build_stream


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
