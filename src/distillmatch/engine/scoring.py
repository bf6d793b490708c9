"""What frozen models say of images, in large pieces; on CUDA each kind of piece is captured."""

import warnings

import torch
from torch import Tensor

from distillmatch.engine.device import Placement
from distillmatch.engine.graphs import CapturedWork, why
from distillmatch.methods import Scores
from distillmatch.methods.contract import checked_scores
from distillmatch.methods.method import ScoreFunction

TRIALS = 1
LARGE_SIDE = 64
"""The largest side of images of which a whole scoring batch is taken at once."""


def piece_size(scoring_batch: int, side: int) -> int:
    """Return how many images of a size are scored at once: of large ones fewer, by powers of 2.

    What a network keeps of a piece, to perturb its images, grows with their pixels.
    """
    size = scoring_batch
    while size > 1 and size * side * side > scoring_batch * LARGE_SIDE * LARGE_SIDE:
        size //= 2
    return size


def score_in_pieces(score: ScoreFunction, images: Tensor, placement: Placement) -> Scores:
    """Score images in pieces that fill the device."""
    size = piece_size(placement.scoring_batch, images.shape[-1])
    with torch.no_grad(), placement.autocast():
        starts = range(0, max(1, len(images)), size)
        parts = [images[start : start + size] for start in starts]
        pieces = [checked_scores(score(part), part) for part in parts]
    return {name: torch.cat([one[name] for one in pieces]) for name in pieces[0]}


class CapturedScores:
    """A training's score function: captured at its first images of each count, then replayed.

    A function that reads from the device cannot be captured; it is called as it is, with a warning.
    """

    def __init__(self, score: ScoreFunction, placement: Placement, doing: str) -> None:
        self.score = score
        self.placement = placement
        self.doing = doing
        self.capturable = placement.captures
        self.by_count: dict[int, tuple[Tensor, CapturedWork[Scores]]] = {}

    def __call__(self, images: Tensor) -> Scores:
        """Return the scores, in memory of their own."""
        if not self.capturable or len(images) == 0:
            return score_in_pieces(self.score, images, self.placement)
        if len(images) not in self.by_count and not self._capture(images):
            return score_in_pieces(self.score, images, self.placement)
        given, captured = self.by_count[len(images)]
        given.copy_(images)
        return {name: rows.clone() for name, rows in captured.replay().items()}

    def _capture(self, images: Tensor) -> bool:
        given = images.clone(memory_format=torch.preserve_format)
        try:
            captured = CapturedWork(
                lambda: score_in_pieces(self.score, given, self.placement), TRIALS
            )
        except RuntimeError as error:
            self.capturable = False
            warnings.warn(
                f"the scores of training '{self.doing}' cannot be captured as a CUDA graph and are "
                f"computed eagerly, which is slower: {why(error)}",
                stacklevel=2,
            )
            return False
        self.by_count[len(images)] = given, captured
        return True
