"""The epochs of a training: their views and scores, made while those before are learned."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import nn

from distillmatch.concurrency import companion_stream
from distillmatch.engine.data import Draft, Epoch, TaskData
from distillmatch.engine.outputs import CapturedOutputs
from distillmatch.engine.stores import StreamedStore
from distillmatch.methods import Frozen, Training
from distillmatch.methods.contract import tensors_of

AHEAD = 2
"""Parts of an epoch whose images are fetched before their turn, where images have to be fetched."""
Place = tuple[int, int]
"""A part of an epoch: the numbers of both."""


class Epochs:
    """Draws a training's epochs in parts: most often one, more where the views would not fit.

    Images that do not lie on the device are fetched by a thread, `AHEAD` parts ahead. On CUDA views
    and scores of the next part are made on a stream beside the steps of this one, at most one part
    ahead. That stream's memory is used again only once the steps that read it are done.
    """

    def __init__(self, data: TaskData, training: Training) -> None:
        self.data = data
        self.training = training
        self.ranges = data.parts(training)
        self.frozen_labeled = self._captured(training.frozen_labeled)
        frozen = data.frozen(training.by_batch)
        self.frozen_unlabeled = self._captured(training.frozen_unlabeled, frozen)
        self.prepared: tuple[Place, Epoch] | None = None
        self.begun = False
        self.stream: torch.cuda.Stream | None = None
        if data.placement.captures:
            self.stream = companion_stream(torch.cuda.current_stream(), "views")
        self.steps_done: deque[torch.cuda.Event] = deque(maxlen=2)
        self.drafts: dict[Place, Future[Draft]] = {}
        self.fetcher: ThreadPoolExecutor | None = None
        used = [data.sets[training.labeled]] + [data.sets["unlabeled"]] * training.unlabeled
        if any(isinstance(images.store, StreamedStore) for images in used):
            self.fetcher = ThreadPoolExecutor(1, thread_name_prefix="fetch")

    def parts(self, number: int) -> Iterator[Epoch]:
        """Yield the parts of an epoch; when one is asked for, the steps of the last are queued."""
        for part in range(len(self.ranges)):
            place = number, part
            yield self._take(place)
            if self.stream is not None:
                # The one after the next may take the memory of this one.
                self.steps_done.append(torch.cuda.current_stream().record_event())
                following = self._after(place)
                if following[0] < self.training.epochs:
                    self.prepared = following, self._make(following)

    def _take(self, place: Place) -> Epoch:
        """Return a part, the prepared one if it is that."""
        prepared, self.prepared = self.prepared, None
        is_ready = prepared is not None and prepared[0] == place
        epoch = prepared[1] if prepared is not None and is_ready else self._make(place)
        if self.stream is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self.stream)
            for tensor in tensors_of(epoch):
                # The host is ahead: it lets go of a part before the device has read it.
                tensor.record_stream(current)
        return epoch

    def _after(self, place: Place) -> Place:
        number, part = place
        return (number + 1, 0) if part + 1 == len(self.ranges) else (number, part + 1)

    def _make(self, place: Place) -> Epoch:
        """Make a part, on CUDA beside the steps that are already queued."""
        draft = self._draft(place)
        if self.stream is not None:
            if not self.begun:  # later, only for what is constant while a network is trained
                self.stream.wait_stream(torch.cuda.current_stream())
                self.begun = True
            if len(self.steps_done) == 2:
                self.stream.wait_event(self.steps_done[0])
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            frozen = self.frozen_labeled, self.frozen_unlabeled
            return self.data.views(self.training, draft, *frozen)

    def _draft(self, place: Place) -> Draft:
        """Return a part's images as far as the host can have them, and have the next ones fetched.

        Of what was fetched for another order than the parts are now taken in, nothing is kept.
        """
        if self.fetcher is None:
            return self.data.draft(self.training, place[0], self.ranges[place[1]])
        fetched, self.drafts, one = self.drafts, {}, place
        while len(self.drafts) <= AHEAD and one[0] < max(self.training.epochs, place[0] + 1):
            given = self.training, one[0], self.ranges[one[1]]
            self.drafts[one] = fetched.get(one) or self.fetcher.submit(self.data.draft, *given)
            one = self._after(one)
        return self.drafts.pop(place).result()

    def _captured(
        self, function: Frozen | None, by_batch: Sequence[nn.Module] = ()
    ) -> CapturedOutputs | None:
        if function is None:
            return None
        given = self.data.info, self.data.placement, self.training.name
        return CapturedOutputs(function, *given, by_batch)
