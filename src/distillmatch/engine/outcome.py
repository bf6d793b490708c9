"""How far a run is, and the outcome of a task: losses, outputs, times, pseudo-labels."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distillmatch.errors import TrainingError
from distillmatch.methods import TaskInfo

Losses = dict[str, dict[str, list[float]]]
"""By training: the mean of each epoch of the loss, and of its terms by name."""


class Judgement(NamedTuple):
    """What a method believes of a task's unlabeled images: a class of each, and whether it is."""

    pseudo_labels: NDArray[np.int64]
    accepted: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TaskOutcome:
    """What came of one task: test outputs, beliefs about unlabeled images, times and memory.

    `logits` and `labels` are those of the test images of all tasks so far, in task order.
    `familiarity` scores all test images, of unseen classes too, with `familiarity_labels`. `truth`
    has the true classes of the task's unlabeled images, for diagnosis alone.
    """

    task: TaskInfo
    logits: NDArray[np.float32]
    labels: NDArray[np.int64]
    familiarity: NDArray[np.float32] | None
    familiarity_labels: NDArray[np.int64]
    judgement: Judgement | None
    truth: NDArray[np.int64]
    values: dict[str, float]
    losses: Losses
    seconds: dict[str, float]
    stored_images: int
    stored_bytes: int


class Clock:
    """Adds up the seconds of named phases."""

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self._seconds = dict(seconds or {})
        self._running: tuple[str, float] | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block."""
        self._running = name, time.perf_counter()
        try:
            yield
        finally:
            self._seconds, self._running = self.seconds, None

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of all phases, of the one that is running up to now."""
        seconds = dict(self._seconds)
        if self._running is not None:
            name, start = self._running
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
        return seconds


@dataclass
class Underway:
    """How far a task is, and what has come of it so far.

    `trainings` are finished, and `epochs` of the one after them. `work` is what progress has
    counted, of earlier tasks too.
    """

    task: int
    trainings: int = 0
    epochs: int = 0
    work: float = 0.0
    losses: Losses = field(default_factory=dict)
    judgement: Judgement | None = None
    clock: Clock = field(default_factory=Clock)

    @property
    def begun(self) -> bool:
        """Whether anything of the task has been done."""
        return (self.trainings, self.epochs) != (0, 0)


class LossMeans:
    """Appends the mean loss of each epoch, and of its terms, to `means`, one epoch late.

    The losses are read once the next epoch's steps are queued: read at once, the device would have
    nothing to do meanwhile. `known` is called then with the number of the epoch, counted from 0.
    `where` names the training in an error.
    """

    def __init__(
        self,
        means: dict[str, list[float]],
        where: str,
        known: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        self.means = means
        self.where = where
        self.known = known
        self._names: tuple[str, ...] = ()
        self._unread: tuple[Tensor, torch.cuda.Event | None] | None = None

    def add(self, losses: Tensor, names: tuple[str, ...]) -> None:
        """Take the losses of an epoch's steps, a row each; read those of the epoch before."""
        self.settle()
        self._names = names
        copied = losses.float()
        if not losses.is_cuda:
            self._unread = copied, None
            return
        kept = torch.empty(copied.shape, pin_memory=True)
        kept.copy_(copied, non_blocking=True)
        self._unread = kept, torch.cuda.current_stream().record_event()

    def settle(self) -> None:
        """Read the losses that were taken last, or say where they stopped being numbers."""
        if self._unread is None:
            return
        (losses, copied), self._unread = self._unread, None
        if copied is not None:
            copied.synchronize()
        values = losses.numpy()
        epoch = len(self.means.get("loss", ()))
        wrong = np.flatnonzero(~np.isfinite(values[:, 0]))
        if len(wrong):
            raise TrainingError(
                f"the loss became {values[wrong[0], 0]} in {self.where}, epoch {epoch + 1}, "
                f"step {wrong[0] + 1}; a lower learning_rate may help"
            )
        for name, column in zip(self._names, values.T, strict=True):
            self.means.setdefault(name, []).append(float(column.mean()))
        self.known(epoch)


class Progress(Protocol):
    """Told of finished work, in units of which `start` gives the total."""

    def start(self, total: float, done: float = 0.0) -> None:
        """Begin to show; of a continued run, `done` is finished already."""

    def advance(self, done: float, doing: str) -> None:
        """Add finished work and say what was being done."""

    def stop(self) -> None:
        """Show no more."""


class NoProgress:
    """Shows nothing."""

    def start(self, total: float, done: float = 0.0) -> None:
        """Ignore the total."""

    def advance(self, done: float, doing: str) -> None:
        """Ignore the work."""

    def stop(self) -> None:
        """Do nothing."""
