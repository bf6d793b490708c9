"""The epochs of a training: their views and scores, made while the epoch before is learned."""

import torch

from distillmatch.engine.data import Epoch, TaskData
from distillmatch.engine.scoring import CapturedScores
from distillmatch.methods import Training
from distillmatch.methods.method import ScoreFunction


class Epochs:
    """Draws a training's epochs; on CUDA the next one on a stream beside the steps of this one.

    An epoch's tensors belong to the stream they were made on: whoever takes one must have waited
    for its last step before the one after the next is prepared. `Engine` does, as it reads the
    losses of every epoch.
    """

    def __init__(self, data: TaskData, training: Training) -> None:
        self.data = data
        self.training = training
        self.score_images = self._captured(training.score_images)
        self.score_unlabeled = self._captured(training.score_unlabeled)
        self.prepared: tuple[int, Epoch] | None = None
        self.begun = False
        self.stream: torch.cuda.Stream | None = None
        if data.placement.device.type == "cuda":
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def take(self, number: int) -> Epoch:
        """Return an epoch, the prepared one if it is that."""
        if self.prepared is None or self.prepared[0] != number:
            self._draw(number)
        assert self.prepared is not None
        epoch, self.prepared = self.prepared[1], None
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        return epoch

    def prepare(self, number: int) -> None:
        """Begin to make an epoch, where that can be done beside the steps already queued."""
        if self.stream is not None and number < self.training.epochs:
            self._draw(number)

    def _draw(self, number: int) -> None:
        if self.stream is None:
            self.prepared = number, self._epoch(number)
            return
        if not self.begun:  # later, only for what is constant while a network is trained
            self.stream.wait_stream(torch.cuda.current_stream())
            self.begun = True
        with torch.cuda.stream(self.stream):
            self.prepared = number, self._epoch(number)

    def _epoch(self, number: int) -> Epoch:
        return self.data.epoch(self.training, number, self.score_images, self.score_unlabeled)

    def _captured(self, score: ScoreFunction | None) -> ScoreFunction | None:
        if score is None:
            return None
        return CapturedScores(score, self.data.placement, self.training.name)
