"""Evaluation: what a method says of the test images after a task."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from distillmatch.engine.device import Placement
from distillmatch.engine.scoring import piece_size
from distillmatch.methods import Method, TaskInfo
from distillmatch.sources import Dataset
from distillmatch.streams import Stream, evaluation_part
from distillmatch.views import Normalization, plain_views


@dataclass(frozen=True, eq=False)
class Outputs:
    """Outputs for the test images of all tasks in order, of which the first `seen` are learned."""

    logits: NDArray[np.float32]
    labels: NDArray[np.int64]
    familiarity: NDArray[np.float32] | None
    seen: int


def evaluate(
    method: Method,
    task: TaskInfo,
    dataset: Dataset,
    stream: Stream,
    normalization: Normalization,
    placement: Placement,
) -> Outputs:
    """Show a method all test images, in large batches."""
    outputs, scores, labels = [], [], []
    size = piece_size(placement.scoring_batch, dataset.image_size)
    for number in range(len(stream)):
        part = evaluation_part(dataset, stream, number)
        labels.append(part.labels)
        for start in range(0, len(part), size):
            pixels = placement.tensor(part.images[start : start + size])
            images = plain_views(pixels.permute(0, 3, 1, 2), normalization, dtype=placement.dtype)
            with torch.no_grad(), placement.autocast():
                outputs.append(method.logits(images).float().cpu().numpy())
                score = method.familiarity(images, task)
            if score is not None:
                scores.append(score.float().cpu().numpy())
    return Outputs(
        logits=np.concatenate(outputs),
        labels=np.concatenate(labels),
        familiarity=np.concatenate(scores) if scores else None,
        seen=sum(map(len, labels[: task.number + 1])),
    )
