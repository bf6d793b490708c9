"""One training step, run eagerly or captured once as a CUDA graph and replayed."""

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import accumulate
from operator import add, itemgetter
from typing import Any

import torch
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.engine.batch_order import Sizes
from distillmatch.engine.data import Epoch
from distillmatch.engine.device import Placement
from distillmatch.engine.graphs import CapturedWork, why
from distillmatch.engine.optimizer import AdamW, Descent, Optimizer, WeightAverage
from distillmatch.errors import ConfigError
from distillmatch.methods import Batch, TaskInfo, Training
from distillmatch.methods.contract import map_outputs, terms_of

STEP_PRIORITY = -2
"""Steps come before the views and scores of the next epoch, which fill the gaps."""
TRIAL_STEPS = 1
"""Steps before a capture; they are undone afterwards."""
STEPS_AHEAD = 16
"""Steps that are queued at most: enough for the time the host needs for the next epoch's views.
A queue that is full would keep the driver, and with it the other runs of the process, waiting."""


@dataclass(frozen=True)
class Optimization:
    """The optimizer of one training, and the average of its weights over the steps, if any."""

    optimizer: Optimizer
    average: WeightAverage | None = None

    @classmethod
    def of(cls, training: Training, placement: Placement, config: RunConfig) -> "Optimization":
        """Make a fresh optimizer over the parameters that the training changes."""
        changed = training.network
        if training.parameters == "head":
            changed = changed.get_submodule("head")
        parameters = list(changed.parameters())
        rate = torch.tensor(training.schedule.learning_rate, device=placement.device)
        decay = config.weight_decay
        optimizer: Optimizer
        if config.optimizer == "adamw":
            optimizer = AdamW(parameters, rate, decay, training.clip)
        else:
            optimizer = Descent(parameters, rate, config.momentum, decay, training.clip)
        average = None
        if training.average_decay is not None:
            average = WeightAverage(training.network, training.average_decay)
        return cls(optimizer, average)


class Step:
    """The step of one training: loss, gradient, update, average.

    `names` are those of the numbers that a step returns: the loss, and its terms if it has several.
    """

    def __init__(
        self, training: Training, optimization: Optimization, placement: Placement, task: TaskInfo
    ) -> None:
        self.training = training
        self.task = task
        self.names: tuple[str, ...] = ()
        self.optimization = optimization
        self.placement = placement

    def __call__(self, batch: Batch) -> Tensor:
        """Take one step and return its loss, followed by the terms of it."""
        optimizer = self.optimization.optimizer
        with self.placement.autocast():
            terms = terms_of(self.training, batch, self.task)
            loss = reduce(add, terms.values())
        self._note(terms)
        optimizer.forget_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if self.optimization.average is not None:
            self.optimization.average.update()
        numbers = [loss, *terms.values()] if len(terms) > 1 else [loss]
        return torch.stack([one.detach().float() for one in numbers])

    def _note(self, terms: dict[str, Tensor]) -> None:
        """Keep the names of the terms, which must be the same in every step."""
        names = ("loss", *terms) if len(terms) > 1 else ("loss",)
        if self.names and names != self.names:
            raise ConfigError(
                f"the loss of training '{self.training.name}' must have the same terms in every "
                f"step: it had {', '.join(self.names[1:]) or 'one'}, and then "
                f"{', '.join(names[1:]) or 'one'}"
            )
        self.names = names


class CapturedStep:
    """A step captured as a CUDA graph: each replay reads its batch from the same memory."""

    def __init__(self, step: Step, example: Batch) -> None:
        self.batch = _copied(example)
        state = _State.of(step)
        self.captured = CapturedWork(
            lambda: step(self.batch), TRIAL_STEPS, lambda: state.restore(step), STEP_PRIORITY
        )

    def __call__(self, batch: Batch) -> Tensor:
        """Take the step for a batch of the example's sizes, and return where its loss will be."""
        _copy_into(self.batch, batch)
        return self.captured.replay()


class EpochSteps:
    """Takes the steps of a training's epochs: eagerly, and on CUDA captured.

    Each size of batches is captured when it is first met; most trainings have one.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.capturable = step.placement.captures
        self.captured: dict[tuple[int, int], CapturedStep] = {}
        self.queued: deque[torch.cuda.Event] = deque()

    def run(self, epoch: Epoch) -> Tensor:
        """Take all steps of an epoch; return their losses and terms, a row for each step."""
        losses = []
        for batch in batches(epoch):
            captured = self._captured(batch) if self.capturable else None
            if captured is None:
                losses.append(self.step(batch))
                continue
            if len(self.queued) == STEPS_AHEAD:
                self.queued.popleft().synchronize()
            losses.append(captured(batch).clone())
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record()
            self.queued.append(done)
        return torch.stack(losses)

    def _captured(self, batch: Batch) -> CapturedStep | None:
        """Return the step captured for batches like this, or say why that cannot be done."""
        sizes = len(batch.images), len(batch.unlabeled)
        if sizes not in self.captured:
            try:
                self.captured[sizes] = CapturedStep(self.step, batch)
            except RuntimeError as error:
                self.capturable = False
                warnings.warn(
                    f"the step of training '{self.step.training.name}' cannot be captured as a "
                    f"CUDA graph and runs eagerly, which is slower: {why(error)}",
                    stacklevel=2,
                )
                return None
        return self.captured[sizes]


def batches(epoch: Epoch) -> Iterator[Batch]:
    """Cut an epoch into the batches of its steps."""
    cuts = zip(_slices(epoch.sizes), _slices(epoch.unlabeled_sizes), strict=True)
    for labeled, unlabeled in cuts:
        yield Batch(
            images=epoch.images[labeled],
            labels=epoch.labels[labeled],
            unlabeled=epoch.unlabeled[unlabeled],
            strong=None if epoch.strong is None else epoch.strong[unlabeled],
            strong_images=None if epoch.strong_images is None else epoch.strong_images[labeled],
            labeled_outputs=map_outputs(itemgetter(labeled), epoch.labeled_outputs),
            unlabeled_outputs=map_outputs(itemgetter(unlabeled), epoch.unlabeled_outputs),
            truth=None if epoch.truth is None else epoch.truth[unlabeled],
        )


def _slices(sizes: Sizes) -> Iterator[slice]:
    """Yield where rows of the given counts lie that follow each other."""
    for size, end in zip(sizes, accumulate(sizes), strict=True):
        yield slice(end - size, end)


@contextmanager
def training_mode(training: Training) -> Iterator[None]:
    """Put a network into the mode its training needs, and freeze what is not trained."""
    network = training.network
    only_head = training.parameters == "head"
    network.train(not only_head or training.head_statistics == "batch")
    if only_head:
        network.requires_grad_(False)
        network.get_submodule("head").requires_grad_(True)
    try:
        yield
    finally:
        network.requires_grad_(True)
        network.eval()


@dataclass(frozen=True)
class _State:
    """What warm-up steps change, to be restored."""

    network: dict[str, Tensor]
    average: dict[str, Tensor]
    optimizer: list[Tensor]

    @classmethod
    def of(cls, step: Step) -> "_State":
        network, average = step.training.network, step.optimization.average
        averaged = {} if average is None else average.tensors()
        return cls(
            {name: value.clone() for name, value in network.state_dict().items()},
            {name: value.clone() for name, value in averaged.items()},
            [one.clone() for one in step.optimization.optimizer.state],
        )

    def restore(self, step: Step) -> None:
        changed = step.training.network.state_dict()
        torch._foreach_copy_(list(changed.values()), list(self.network.values()))
        if step.optimization.average is not None:
            step.optimization.average.restore(self.average)
        torch._foreach_copy_(step.optimization.optimizer.state, self.optimizer)


def _map_batch(change: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    changed: dict[str, Any] = {}
    for part in fields(batch):
        value = getattr(batch, part.name)
        if isinstance(value, tuple):
            changed[part.name] = map_outputs(change, value)
        elif value is not None:
            changed[part.name] = change(value)
    return replace(batch, **changed)


def _copied(batch: Batch) -> Batch:
    return _map_batch(lambda rows: rows.clone(memory_format=torch.preserve_format), batch)


def _copy_into(target: Batch, given: Batch) -> None:
    """Copy a batch to where a captured step reads it."""
    for part in fields(target):
        into, value = getattr(target, part.name), getattr(given, part.name)
        pairs = zip(into, value, strict=True) if isinstance(into, tuple) else [(into, value)]
        for place, rows in pairs:
            if place is not None:
                place.copy_(rows)
