"""Evaluation: every test image is shown once, in the order of the tasks, in pieces of one size."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_dataset
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.engine import outputs as evaluation
from distillmatch.engine.device import Placement
from distillmatch.methods import TaskInfo
from distillmatch.streams import build_stream
from distillmatch.views import Normalization

NEUTRAL = Normalization(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


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


@pytest.mark.parametrize(("size", "shown"), [(5, [5, 5, 5, 3]), (4, [4, 4, 4, 4, 2]), (99, [18])])
def test_test_images_of_all_tasks_fill_pieces_of_one_size(
    size: int, shown: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "piece_size", lambda batch, side: size)
    outputs, _, stream, method = evaluated(scores=True)
    assert method.shown == shown
    parts = [stream.evaluation_part(number) for number in range(3)]
    pixels = np.concatenate([part.images[:, 0, 0] for part in parts])
    np.testing.assert_allclose(outputs.logits, pixels / np.float32(255), rtol=1e-6)
    assert outputs.familiarity is not None
    np.testing.assert_allclose(outputs.familiarity, pixels[:, 0] / np.float32(255), rtol=1e-6)
    assert outputs.labels.tolist() == [label for part in parts for label in part.labels]


def test_a_method_without_scores_has_none() -> None:
    assert evaluated(scores=False)[0].familiarity is None


def evaluated(scores: bool) -> tuple[evaluation.Outputs, Any, Any, Reader]:
    dataset = make_dataset(classes=6, parents=3, noise=True)
    config = RunConfig(tasks=3, device="cpu")
    stream = build_stream(dataset, config)
    method: Any = Reader(scores)
    # The second task; no method has fewer outputs than classes, and this one has three.
    task = TaskInfo(number=1, sizes=(2, 1), last=False, coreset=False)
    outputs = evaluation.evaluate(
        method, task, dataset, stream, NEUTRAL, Placement(torch.device("cpu"), torch.float32)
    )
    return outputs, dataset, stream, method
