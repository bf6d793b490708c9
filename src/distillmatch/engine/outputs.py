"""Outputs of networks that do not learn: of frozen ones for the steps, of a method for tests."""

from collections.abc import Sequence
from contextlib import nullcontext
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distillmatch.engine.batch_order import Sizes
from distillmatch.engine.device import Placement
from distillmatch.engine.graphs import CapturedWork, captured_or_none
from distillmatch.engine.stores import StreamedStore
from distillmatch.methods import Frozen, Method, TaskInfo
from distillmatch.methods.contract import logits_of, map_outputs, outputs_of
from distillmatch.networks import by_batch_statistics
from distillmatch.streams import Stream
from distillmatch.views import Normalization, plain_views

LARGE_SIDE = 64
"""The largest side of images of which a whole scoring batch is taken at once."""


def piece_size(scoring_batch: int, side: int) -> int:
    """Return the number of images that go through a network at once; fewer of large ones.

    What a network keeps of a piece, to perturb its images, grows with their pixels.
    """
    size = scoring_batch
    while size > 1 and size * side * side > scoring_batch * LARGE_SIDE * LARGE_SIDE:
        size //= 2
    return size


def steps_in_piece(batch: int, most: int) -> int:
    """Return the number of whole batches in a piece."""
    return max(1, most // max(1, batch))


def pieces_of(count: int, sizes: Sequence[int], most: int) -> list[list[int]]:
    """Cut so many images, or batches of some sizes, into pieces: lists of sizes."""
    if not sizes:
        return [[min(most, count - start)] for start in range(0, max(1, count), most)]
    steps = steps_in_piece(max(sizes), most)
    return [list(sizes[start : start + steps]) for start in range(0, len(sizes), steps)]


def frozen_outputs(
    frozen: Frozen,
    images: Tensor,
    task: TaskInfo,
    placement: Placement,
    sizes: Sequence[int] = (),
    by_batch: Sequence[nn.Module] = (),
) -> Any:
    """Return the outputs of frozen networks, computed in pieces that fill the device.

    Where the images are batches of some sizes, a piece has whole ones, as many as fit; the networks
    `by_batch` normalize by these.
    """
    most = piece_size(placement.scoring_batch, images.shape[-1])
    outputs, start = [], 0
    with torch.no_grad(), placement.autocast():
        for batches in pieces_of(len(images), sizes, most):
            piece = images[start : start + sum(batches)]
            start += len(piece)
            with by_batch_statistics(by_batch, batches) if len(piece) > 1 else nullcontext():
                outputs.append(outputs_of(frozen, piece, task))
    return joined(outputs)


def joined(pieces: Sequence[Any]) -> Any:
    """Return the rows of several outputs, one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    columns = zip(*pieces, strict=True)
    return type(pieces[0])(*(None if c[0] is None else torch.cat(c) for c in columns))


class CapturedOutputs:
    """The frozen networks of a training: captured for images of each number, then replayed.

    Networks that normalize by batches are captured for batches of each size and number: short ones
    lie elsewhere in every epoch, and a capture takes as long as many replays. A function that reads
    from the device cannot be captured; it is called as it is, with a warning.
    """

    def __init__(
        self,
        frozen: Frozen,
        task: TaskInfo,
        placement: Placement,
        training: str,
        by_batch: Sequence[nn.Module] = (),
    ) -> None:
        self.frozen = frozen
        self.task = task
        self.placement = placement
        self.training = training
        self.by_batch = by_batch
        self.capturable = placement.captures
        self.by_sizes: dict[Sizes, tuple[Tensor, CapturedWork[Any]]] = {}

    def __call__(self, images: Tensor, sizes: Sizes) -> Any:
        """Return the outputs for images in batches of some sizes, in memory of their own."""
        if not self.capturable or len(images) == 0:
            return self._eager(images, sizes)
        if not self.by_batch:
            return self._replayed(images, (len(images),))
        if len(set(sizes)) == 1:
            return self._replayed(images, sizes)
        batches = torch.split(images, list(sizes))
        outputs: list[Any] = [None] * len(sizes)
        for size in sorted(set(sizes) - {0}):
            places = [number for number, one in enumerate(sizes) if one == size]
            alike = torch.cat([batches[number] for number in places])
            made = self._replayed(alike, (size,) * len(places))
            for turn, number in enumerate(places):
                rows = slice(turn * size, (turn + 1) * size)
                outputs[number] = map_outputs(itemgetter(rows), made)
        return joined([one for one in outputs if one is not None])

    def _replayed(self, images: Tensor, sizes: Sizes) -> Any:
        if sizes not in self.by_sizes and not self._capture(images, sizes):
            return self._eager(images, sizes)
        given, captured = self.by_sizes[sizes]
        given.copy_(images)
        return map_outputs(torch.clone, captured.replay())

    def _eager(self, images: Tensor, sizes: Sizes) -> Any:
        where = self.task, self.placement, sizes if self.by_batch else (), self.by_batch
        return frozen_outputs(self.frozen, images, *where)

    def _capture(self, images: Tensor, sizes: Sizes) -> bool:
        if not self.capturable:
            return False
        given = images.clone(memory_format=torch.preserve_format)
        captured = captured_or_none(
            lambda: CapturedWork(lambda: self._eager(given, sizes), trials=1),
            f"the frozen part of training '{self.training}'",
        )
        if captured is None:
            self.capturable = False
            return False
        self.by_sizes[sizes] = given, captured
        return True


class Outputs(NamedTuple):
    """A method's outputs for the test images of all tasks, in order; scores if it gives any."""

    logits: NDArray[np.float32]
    labels: NDArray[np.int64]
    familiarity: NDArray[np.float32] | None


def evaluate(
    method: Method,
    task: TaskInfo,
    stream: Stream,
    normalization: Normalization,
    placement: Placement,
) -> Outputs:
    """Return a method's outputs for all test images, computed in large batches."""
    outputs: list[Tensor] = []
    scores: list[Tensor] = []
    parts = [stream.evaluation_part(number) for number in range(len(stream))]
    store = StreamedStore([part.images for part in parts], placement)
    for (count,) in pieces_of(len(store), [], piece_size(placement.scoring_batch, store.side)):
        rows = np.arange(count) + sum(len(one) for one in outputs)
        pixels = store.deliver(store.fetch(rows))
        images = plain_views(pixels, normalization, dtype=placement.dtype)
        with torch.no_grad(), placement.autocast():
            outputs.append(logits_of(method, images, task.seen).float())
            score = method.familiarity(images, task)
        if score is not None:
            scores.append(score.float())
    return Outputs(
        torch.cat(outputs).cpu().numpy(),
        np.concatenate([part.labels for part in parts]),
        torch.cat(scores).cpu().numpy() if scores else None,
    )
