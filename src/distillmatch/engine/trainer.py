"""Training: takes a method through one task, from epoch to epoch, and can be continued anywhere."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

from distillmatch.config import RunConfig
from distillmatch.engine.data import TaskData
from distillmatch.engine.device import Placement
from distillmatch.engine.epochs import Epochs
from distillmatch.engine.outcome import Judgement, LossMeans, NoProgress, Progress, Underway
from distillmatch.engine.snapshot import (
    Snapshot,
    restore_method,
    restore_step,
    restored_underway,
    take_snapshot,
)
from distillmatch.engine.steps import EpochSteps, Step, training_mode
from distillmatch.errors import TrainingError
from distillmatch.methods import Method, TaskInfo, Training
from distillmatch.methods.contract import trainings_of
from distillmatch.networks import Network
from distillmatch.streams import Coreset
from distillmatch.views import plain_views

EpochDone = Callable[[Training, int], None]
"""Called with a training and the number of an epoch, from 0, once its losses are known."""


class Trainer:
    """Runs the trainings of a task, one after another, on data that it is given.

    `pause` is called wherever a snapshot can be taken: between epochs and between trainings. A
    trainer that is given a snapshot by `resume` goes on from there as if nothing had happened.
    """

    def __init__(
        self,
        config: RunConfig,
        method: Method,
        placement: Placement,
        progress: Progress | None = None,
        pause: Callable[[], None] | None = None,
        first_task: int = 0,
        epoch_done: EpochDone = lambda training, epoch: None,
    ) -> None:
        self.config = config
        self.method = method
        self.placement = placement
        self.progress = progress or NoProgress()
        self.underway = Underway(first_task)
        self.epoch_done = epoch_done
        self._at_work: tuple[Step, LossMeans] | None = None
        self._pause = pause or (lambda: None)
        self._resumed: Snapshot | None = None

    def resume(self, snapshot: Snapshot) -> None:
        """Let `learn` begin where the snapshot was taken."""
        self._resumed = snapshot
        self.underway = restored_underway(snapshot)

    def snapshot(self, coreset: Coreset) -> Snapshot:
        """Return all that the rest of the work depends on, as it is now."""
        step = None
        if self._at_work is not None:
            step, means = self._at_work
            means.settle()
        return take_snapshot(self.method, coreset, self.underway, step)

    def begin(self, total: float) -> None:
        """Show progress towards a total of work, as counted by `work_of`."""
        self.progress.start(total, self.underway.work)

    def learn(self, task: TaskInfo, data: TaskData, doing: str) -> None:
        """Run what is left of a task's trainings; `doing` names it where progress is shown."""
        underway = self.underway
        for training in self._trainings(task, data)[underway.trainings :]:
            with underway.clock.phase(training.name):
                self._train(training, data, task, doing)
            underway.trainings, underway.epochs = underway.trainings + 1, 0
            self._pause()
        self._resumed = None

    def _trainings(self, task: TaskInfo, data: TaskData) -> list[Training]:
        """Return a task's trainings, with the method as it was where a resumed run stopped.

        A task that had not begun may start with fresh weights, so what was learned is put back
        before its trainings are asked for; in one that had begun, after. What the finished
        trainings counted beforehand is counted again, for the later ones may use it.
        """
        resumed, begun = self._resumed, self.underway.begun
        if resumed is not None and not begun:
            restore_method(resumed, self.method)
            self._resumed = None
        trainings = trainings_of(self.method, task)
        if resumed is not None and begun:
            restore_method(resumed, self.method)
            if self.underway.trainings < len(trainings):
                for finished in trainings[: self.underway.trainings]:
                    if finished.before is not None:
                        finished.before(data, task)
        return trainings

    def work_of(self, training: Training, task: TaskInfo, steps: int) -> float:
        """Return the images that a training of a task will see in so many steps an epoch."""
        sizes = self.config.batch, self.config.unlabeled_batch
        return training.epochs * steps * training.views_in_step(*sizes, task)

    def steps_of(self, training: Training, task: TaskInfo) -> EpochSteps:
        """Return what takes a training's steps, with a fresh optimizer."""
        return EpochSteps(Step(training, task, self.placement, self.config))

    def _train(self, training: Training, data: TaskData, task: TaskInfo, doing: str) -> None:
        """Run one training, or what is left of it."""
        underway = self.underway
        if training.before is not None:
            training.before(data, task)
        if underway.judgement is None:
            underway.judgement = self._judged(training, data, task)
        steps = self.steps_of(training, task)
        step = steps.step
        if self._resumed is not None:
            restore_step(self._resumed, step)
            self._resumed = None
        means = LossMeans(
            underway.losses.setdefault(training.name, {}),
            f"task {task.number + 1}, {training.name}",
            partial(self.epoch_done, training),
        )
        self._at_work = step, means
        epochs, in_step = Epochs(data, training), self.work_of(training, task, 1) / training.epochs
        with training_mode(training):
            for number in range(underway.epochs, training.epochs):
                step.optimizer.rate.fill_(training.schedule.rate(number))
                losses = []
                for part in epochs.parts(number):
                    losses.append(steps.run(part))
                    underway.work += part.steps * in_step
                    self.progress.advance(part.steps * in_step, f"{doing} {training.name}")
                means.add(torch.cat(losses), step.names)
                underway.epochs = number + 1
                self._pause()
        means.settle()
        if step.average is not None:
            step.average.put_in_place()
        self._at_work = None
        self._refuse_ruin(training, data, task)
        if training.after is not None:
            training.after(data, task)

    def _judged(self, training: Training, data: TaskData, task: TaskInfo) -> Judgement | None:
        """Return what the method believes of the unlabeled images, if it says that."""
        frozen = training.frozen_unlabeled
        if frozen is None or type(self.method).judge is Method.judge:
            return None
        outputs = data.run(frozen, "unlabeled", by_batch=training.by_batch)
        judged = self.method.judge(outputs, task, data.truth)
        if judged is None:
            return None
        return Judgement(*(one.cpu().numpy() for one in judged))

    def _refuse_ruin(self, training: Training, data: TaskData, task: TaskInfo) -> None:
        """Refuse a network that the last step ruined: the losses are those before each step.

        Finite weights may be so large that no output is finite, so a few images are tried too.
        """
        network = training.network
        weights = [one for one in network.state_dict().values() if one.is_floating_point()]
        sound = nn.utils.get_total_norm(weights).isfinite()
        if isinstance(network, Network):  # and not one of a user's own that takes what it likes
            labeled = data.sets["labeled"]
            few = labeled.load(np.arange(min(self.config.batch, len(labeled))))
            images = plain_views(few, data.normalization, dtype=self.placement.dtype)
            with torch.no_grad(), self.placement.autocast():
                sound = sound & network(images)[:, : task.seen].isfinite().all()
        if not sound:
            raise TrainingError(
                f"in task {task.number + 1} the {training.name} ended without finite weights or "
                "outputs; a lower learning_rate may help"
            )
