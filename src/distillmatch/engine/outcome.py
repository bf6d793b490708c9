"""What comes of a task, and what has come of it so far."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from distillmatch.engine.adamw import AdamW
from distillmatch.engine.descent import Descent
from distillmatch.methods import TaskInfo
from distillmatch.methods.schedule import Schedule

Losses = dict[str, dict[str, list[float]]]
"""By training: the mean of each epoch of the loss, and of its terms by name."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a method believed of a task's unlabelled images, beside the truth."""

    pseudo_labels: NDArray[np.int64]
    accepted: NDArray[np.bool_]
    truth: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TaskOutcome:
    """What came of one task: test outputs, beliefs about unlabelled images, times and memory.

    `logits` and `labels` are those of the test images of all tasks so far, in task order.
    `familiarity` scores all test images, of unseen classes too, with `familiarity_labels`.
    """

    task: TaskInfo
    logits: NDArray[np.float32]
    labels: NDArray[np.int64]
    familiarity: NDArray[np.float32] | None
    familiarity_labels: NDArray[np.int64]
    judgement: Judgement | None
    values: dict[str, float]
    losses: Losses
    seconds: dict[str, float]
    stored_images: int
    stored_bytes: int


class Clock:
    """Adds up the seconds of named phases."""

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self.seconds = dict(seconds or {})
        self.running: tuple[str, float] | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block."""
        self.running = name, time.perf_counter()
        try:
            yield
        finally:
            self.seconds, self.running = self.so_far(), None

    def so_far(self) -> dict[str, float]:
        """Return the seconds of all phases, of the one that is running up to now."""
        seconds = dict(self.seconds)
        if self.running is not None:
            name, start = self.running
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
        return seconds


@dataclass
class Underway:
    """How far a task is, and what has come of it so far.

    `trainings` are finished, and `epochs` of the one after them. `schedules` are those of the
    trainings that this process has begun, and `optimizer` is the one at work.
    """

    task: int
    trainings: int = 0
    epochs: int = 0
    losses: Losses = field(default_factory=dict)
    judgement: Judgement | None = None
    clock: Clock = field(default_factory=Clock)
    schedules: dict[str, Schedule] = field(default_factory=dict)
    optimizer: Descent | AdamW | None = None

    @property
    def begun(self) -> bool:
        """Whether anything of the task has been done."""
        return (self.trainings, self.epochs) != (0, 0)
