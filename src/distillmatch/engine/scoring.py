"""What frozen networks answer about images, in large pieces; on CUDA each kind is captured."""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from distillmatch.engine.batch_order import Sizes
from distillmatch.engine.device import Placement
from distillmatch.engine.graphs import CapturedWork, why
from distillmatch.methods import Ask, TaskInfo
from distillmatch.methods.contract import answers_of, map_answers
from distillmatch.networks import by_batch_statistics

TRIALS = 1
LARGE_SIDE = 64
"""The largest side of images of which a whole scoring batch is taken at once."""


def piece_size(scoring_batch: int, side: int) -> int:
    """Return the number of images of a size that are asked about at once; fewer of large ones.

    What a network keeps of a piece, to perturb its images, grows with their pixels.
    """
    size = scoring_batch
    while size > 1 and size * side * side > scoring_batch * LARGE_SIDE * LARGE_SIDE:
        size //= 2
    return size


def ask_in_pieces(
    ask: Ask,
    images: Tensor,
    task: TaskInfo,
    placement: Placement,
    sizes: Sequence[int] = (),
    by_batch: Sequence[nn.Module] = (),
) -> Any:
    """Ask about images in pieces that fill the device.

    Where they are batches of some sizes, a piece has whole ones, as many as fit; the networks
    `by_batch` normalize by these.
    """
    most = piece_size(placement.scoring_batch, images.shape[-1])
    answers, start = [], 0
    with torch.no_grad(), placement.autocast():
        for batches in pieces_of(len(images), sizes, most):
            piece = images[start : start + sum(batches)]
            start += len(piece)
            alone = by_batch_statistics(by_batch, batches) if len(piece) > 1 else nullcontext()
            with alone:
                answers.append(answers_of(ask, piece, task))
    return joined(answers)


def pieces_of(count: int, sizes: Sequence[int], most: int) -> list[list[int]]:
    """Cut so many images, or batches of some sizes, into pieces: lists of sizes."""
    if not sizes:
        return [[min(most, count - start)] for start in range(0, max(1, count), most)]
    steps = steps_in_piece(max(sizes), most)
    return [list(sizes[start : start + steps]) for start in range(0, len(sizes), steps)]


def steps_in_piece(batch: int, most: int) -> int:
    """Return the number of whole batches that are asked about at once."""
    return max(1, most // max(1, batch))


def joined(pieces: Sequence[Any]) -> Any:
    """Return the rows of several answers, one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    columns = zip(*pieces, strict=True)
    return type(pieces[0])(*(None if c[0] is None else torch.cat(c) for c in columns))


class CapturedAnswers:
    """What a training asks frozen networks: captured for batches of each size, then replayed.

    A function that reads from the device cannot be captured; it is called as it is, with a warning.
    """

    def __init__(
        self,
        ask: Ask,
        task: TaskInfo,
        placement: Placement,
        doing: str,
        by_batch: Sequence[nn.Module] = (),
    ) -> None:
        self.ask = ask
        self.task = task
        self.placement = placement
        self.doing = doing
        self.by_batch = by_batch
        self.capturable = placement.captures
        self.by_sizes: dict[Sizes, tuple[Tensor, CapturedWork[Any]]] = {}

    def __call__(self, images: Tensor, sizes: Sizes) -> Any:
        """Return the answers about images in batches of some sizes, in memory of their own."""
        if not self.capturable or len(images) == 0:
            return self._ask(images, sizes)
        if sizes not in self.by_sizes and not self._capture(images, sizes):
            return self._ask(images, sizes)
        given, captured = self.by_sizes[sizes]
        given.copy_(images)
        return map_answers(torch.clone, captured.replay())

    def _ask(self, images: Tensor, sizes: Sizes) -> Any:
        given = sizes, self.by_batch
        return ask_in_pieces(self.ask, images, self.task, self.placement, *given)

    def _capture(self, images: Tensor, sizes: Sizes) -> bool:
        given = images.clone(memory_format=torch.preserve_format)
        try:
            captured = CapturedWork(lambda: self._ask(given, sizes), TRIALS)
        except RuntimeError as error:
            self.capturable = False
            warnings.warn(
                f"what training '{self.doing}' asks frozen networks cannot be captured as a CUDA "
                f"graph and is computed eagerly, which is slower: {why(error)}",
                stacklevel=2,
            )
            return False
        self.by_sizes[sizes] = given, captured
        return True
