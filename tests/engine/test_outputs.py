"""Outputs of networks that do not learn: of frozen ones for the steps, of a method for tests."""

import numpy as np
import pytest
import torch
from conftest import make_dataset
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.engine import outputs as outputs_module
from distillmatch.engine.device import Placement
from distillmatch.engine.outputs import evaluate
from distillmatch.methods import TaskInfo
from distillmatch.streams import build_stream
from distillmatch.views import Normalization

TASK = TaskInfo(number=1, sizes=(2, 2), last=False, coreset=False)
NEUTRAL = Normalization(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
CPU = Placement(torch.device("cpu"), torch.float32)


class Reader:
    """A method whose output is the first pixel of an image, and keeps how many it was shown."""

    def __init__(self, scores: bool) -> None:
        self.scores = scores
        self.shown: list[int] = []

    def logits(self, images: Tensor) -> Tensor:
        self.shown.append(len(images))
        return images[:, :, 0, 0]

    def familiarity(self, images: Tensor, task: TaskInfo) -> Tensor | None:
        return images[:, 0, 0, 0] if self.scores else None


@pytest.mark.parametrize("scores", [True, False])
@pytest.mark.parametrize(("size", "shown"), [(5, [5, 5, 5, 3]), (99, [18])])
def test_test_images_of_all_tasks_are_shown_once_in_pieces_of_one_size(
    size: int, shown: list[int], scores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs_module, "piece_size", lambda batch, side: size)
    dataset = make_dataset(classes=6, parents=3, noise=True)
    stream, method = build_stream(dataset, RunConfig(tasks=3)), Reader(scores)
    parts = [stream.evaluation_part(number) for number in range(3)]
    pixels = np.concatenate([part.images[:, 0, 0] for part in parts]) / np.float32(255)
    # The second task; no method has fewer outputs than classes, and this one has three.
    task = TaskInfo(number=1, sizes=(2, 1), last=False, coreset=False)
    outputs = evaluate(method, task, stream, NEUTRAL, CPU)  # type: ignore[arg-type]
    assert method.shown == shown
    np.testing.assert_allclose(outputs.logits, pixels, rtol=1e-6)
    assert outputs.labels.tolist() == [label for part in parts for label in part.labels]
    if scores:
        assert outputs.familiarity is not None
        np.testing.assert_allclose(outputs.familiarity, pixels[:, 0], rtol=1e-6)
    else:
        assert outputs.familiarity is None
