"""Evaluation: what a method says of the test images after a task."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from distillmatch.engine.device import Placement
from distillmatch.engine.scoring import piece_size
from distillmatch.methods import Method, TaskInfo
from distillmatch.methods.contract import logits_of
from distillmatch.sources import Dataset
from distillmatch.streams import EvaluationPart, Stream, evaluation_part
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

    def parts() -> Iterator[EvaluationPart]:
        for number in range(len(stream)):
            part = evaluation_part(dataset, stream, number)
            labels.append(part.labels)
            yield part

    for piece in _pieces(parts(), piece_size(placement.scoring_batch, dataset.image_size)):
        pixels = placement.tensor(piece).permute(0, 3, 1, 2)
        images = plain_views(pixels, normalization, dtype=placement.dtype)
        with torch.no_grad(), placement.autocast():
            outputs.append(logits_of(method, images, task.seen).float())
            score = method.familiarity(images, task)
        if score is not None:
            scores.append(score.float())
    return Outputs(
        logits=torch.cat(outputs).cpu().numpy(),
        labels=np.concatenate(labels),
        familiarity=torch.cat(scores).cpu().numpy() if scores else None,
        seen=sum(map(len, labels[: task.number + 1])),
    )


def _pieces(parts: Iterable[EvaluationPart], size: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the images of all parts in pieces of a size, for few of a small part fill no device."""
    held: list[NDArray[np.uint8]] = []
    room = size
    for part in parts:
        start = 0
        while start < len(part):
            held.append(np.asarray(part.images[start : start + room]))
            start, room = start + len(held[-1]), room - len(held[-1])
            if room == 0:
                yield np.concatenate(held)
                held, room = [], size
    if held:
        yield np.concatenate(held)
