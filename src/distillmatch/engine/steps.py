"""One training step, run eagerly or captured once as a CUDA graph and replayed."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import add

import torch
from torch import Tensor

from distillmatch.config import RunConfig
from distillmatch.engine.data import Epoch
from distillmatch.engine.device import Placement
from distillmatch.engine.graphs import CapturedWork, captured_or_none
from distillmatch.engine.optimizer import WeightAverage, make_optimizer
from distillmatch.errors import ConfigError
from distillmatch.methods import Batch, TaskInfo, Training
from distillmatch.methods.contract import map_batch, tensors_of, terms_of

STEP_PRIORITY = -2
"""Steps come before the views and scores of the next epoch, which fill the gaps."""
TRIAL_STEPS = 1
"""Steps before a capture; they are undone afterwards."""
STEPS_AHEAD = 16
"""Steps that are queued at most: enough for the time the host needs for the next epoch's views.
A queue that is full would keep the driver, and with it the other runs of the process, waiting."""
LABELED = ("images", "labels", "strong_images", "labeled_outputs")
"""Fields of a batch with a row for each labeled image; the others are about unlabeled ones."""


class Step:
    """The step of one training: loss, gradient, update, average, with a fresh optimizer.

    `names` are those of the numbers that a step returns: the loss, and its terms if it has several.
    """

    def __init__(
        self, training: Training, task: TaskInfo, placement: Placement, config: RunConfig
    ) -> None:
        self.training = training
        self.task = task
        self.placement = placement
        self.names: tuple[str, ...] = ()
        self.optimizer = make_optimizer(training, config, placement.device)
        decay = training.average_decay
        self.average = None if decay is None else WeightAverage(training.network, decay)

    def __call__(self, batch: Batch) -> Tensor:
        """Take one step and return its loss, followed by the terms of it."""
        with self.placement.autocast():
            terms = terms_of(self.training, batch, self.task)
            loss = reduce(add, terms.values())
        names = ("loss", *terms) if len(terms) > 1 else ("loss",)
        if self.names and names != self.names:
            raise ConfigError(
                f"the loss of training '{self.training.name}' must have the same terms in every "
                f"step: it had {', '.join(self.names[1:]) or 'one'}, and then "
                f"{', '.join(names[1:]) or 'one'}"
            )
        self.names = names
        self.optimizer.forget_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        numbers = [loss, *terms.values()] if len(terms) > 1 else [loss]
        return torch.stack([one.detach().float() for one in numbers])

    @property
    def state(self) -> dict[str, Tensor]:
        """All that steps change beside the network, by the names that snapshots give it."""
        state = {f"optimizer/{number}": one for number, one in enumerate(self.optimizer.state)}
        if self.average is not None:
            state |= {f"average/{name}": one for name, one in self.average.tensors().items()}
        return state


class CapturedStep:
    """A step captured as a CUDA graph: each replay reads its batch from the same memory."""

    def __init__(self, step: Step, example: Batch) -> None:
        self.batch = map_batch(
            lambda _, rows: rows.clone(memory_format=torch.preserve_format), example
        )
        changed = [*step.training.network.state_dict().values(), *step.state.values()]
        before = [one.clone() for one in changed]
        self.captured = CapturedWork(
            lambda: step(self.batch),
            TRIAL_STEPS,
            lambda: torch._foreach_copy_(changed, before),
            STEP_PRIORITY,
        )

    def __call__(self, batch: Batch) -> Tensor:
        """Take the step for a batch of the example's sizes, and return where its loss will be."""
        for place, rows in zip(tensors_of(self.batch), tensors_of(batch), strict=True):
            place.copy_(rows)
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
        """Return the step captured for batches like this, if it can be."""
        sizes = len(batch.images), len(batch.unlabeled)
        if sizes not in self.captured:
            what = f"the step of training '{self.step.training.name}'"
            captured = captured_or_none(lambda: CapturedStep(self.step, batch), what)
            if captured is None:
                self.capturable = False
                return None
            self.captured[sizes] = captured
        return self.captured[sizes]


def batches(epoch: Epoch) -> Iterator[Batch]:
    """Cut an epoch into the batches of its steps."""
    end = end_u = 0
    for size, size_u in zip(epoch.sizes, epoch.unlabeled_sizes, strict=True):
        cut, cut_u = slice(end, end + size), slice(end_u, end_u + size_u)
        end, end_u = cut.stop, cut_u.stop

        def rows_of(name: str, rows: Tensor, cut: slice = cut, cut_u: slice = cut_u) -> Tensor:
            return rows[cut if name in LABELED else cut_u]

        yield map_batch(rows_of, epoch)


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
