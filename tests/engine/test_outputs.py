"""Outputs of frozen networks: captured batches give what the networks give when they are called."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from distillmatch.engine import outputs as outputs_module
from distillmatch.engine.device import Placement
from distillmatch.engine.outputs import CapturedOutputs, frozen_outputs
from distillmatch.methods import TaskInfo
from distillmatch.methods.method import Past
from distillmatch.networks import build_network

TASK = TaskInfo(number=1, sizes=(2, 2), last=False, coreset=False)


class OnAGpu(Placement):
    """A CPU whose work is captured, by a stand-in that computes it anew."""

    captures = True


class Captured:
    made = 0

    def __init__(self, work: Callable[[], Any], trials: int) -> None:
        type(self).made += 1
        self.replay = work


@pytest.mark.parametrize("by_batch", [True, False])
def test_short_batches_are_captured_once_wherever_they_lie(
    by_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs_module, "CapturedWork", Captured)
    monkeypatch.setattr(Captured, "made", 0)
    network = build_network("wrn-10-1", 4, image_size=8).eval()

    def past(images: Tensor, task: TaskInfo) -> Past:
        return Past(network(images))

    placement = OnAGpu(torch.device("cpu"), torch.float32)
    networks = [network] if by_batch else []
    captured = CapturedOutputs(past, TASK, placement, "classifier", networks)
    for sizes in ((4, 4, 2, 4), (2, 4, 4, 4), (4, 4, 4, 2), (4, 4, 4, 4)):
        images = torch.randn(sum(sizes), 3, 8, 8)
        expected = frozen_outputs(past, images, TASK, placement, sizes, networks)
        torch.testing.assert_close(captured(images, sizes).past, expected.past)
    # Three full batches, a short one and four full ones; or fourteen images and sixteen.
    assert Captured.made == (3 if by_batch else 2)
