"""A task learned by training: from images and labels to networks that know more classes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distillmatch.config import RunConfig
from distillmatch.engine import Judgement, Placement, Progress, Snapshot
from distillmatch.engine.data import TaskData
from distillmatch.engine.device import NetworkFactory
from distillmatch.engine.trainer import Trainer
from distillmatch.learner.explanation import Explanation
from distillmatch.learner.labels import slots_of
from distillmatch.learner.recognition import (
    Sample,
    calibrated_threshold,
    choose_examples,
)
from distillmatch.learner.task import Classes, Given, Keeper, explained, record_of
from distillmatch.learner.trained import Trained, fresh_method, grow, revived_method, task_info
from distillmatch.methods import Method, TaskInfo, Training
from distillmatch.methods.contract import trainings_of
from distillmatch.streams import Coreset, Experience
from distillmatch.views import Normalization


def learn_task(
    before: Trained | None,
    config: RunConfig,
    given: Given,
    progress: Progress | None = None,
    keeper: Keeper | None = None,
) -> Trained:
    """Learn a task; what was learned before stays as it is, whatever happens."""
    task = _Task.of(before, config, given)
    factory = NetworkFactory.of(config, task.info.seen, task.side, task.placement)
    sample = Sample.nothing()
    if before is None:
        method = fresh_method(config, factory)
    else:
        snapshot = before.snapshot()
        known = len(task.classes.known)
        method = revived_method(config, known, task.side, task.placement, snapshot)
        images = given.environment.images
        sample = Sample.of(
            method, before.task, images, task.normalization, task.placement, config.seed
        )
        grow(method, factory)
    task.data.networks = method.networks
    # Asking for the trainings may give networks new weights: what was learned is put back later.
    trainings = trainings_of(method, task.info)
    fingerprint = given.fingerprint(config, task.info.number)
    resumed = None if keeper is None else keeper.found(fingerprint)
    data, coreset = task.data, task.coreset
    trainer = run_trainings(
        config, method, trainings, data, coreset, given.name, resumed, progress, keeper
    )
    method.end_task(task.info)
    return _concluded(task, before, trainings, trainer, sample)


@dataclass(frozen=True, eq=False)
class _Task:
    """A task made ready: its classes, and the data to learn from."""

    given: Given
    config: RunConfig
    placement: Placement
    classes: Classes
    info: TaskInfo
    slots: NDArray[np.int64]
    coreset: Coreset
    normalization: Normalization
    data: TaskData

    @property
    def side(self) -> int:
        """The side of the images."""
        return self.coreset.image_size

    @classmethod
    def of(cls, before: Trained | None, config: RunConfig, given: Given) -> "_Task":
        """Number the classes and put the data on the device."""
        placement = Placement.of(config)
        if before is None:
            coreset = Coreset(config.coreset, given.images.shape[1])
            normalization = Normalization.of(given.images)
        else:
            coreset, normalization = before.coreset, before.normalization
        classes = Classes.after(before, given)
        slots = slots_of(classes.labels, given.labels)
        known = np.unique(slots[slots < len(classes.known)])
        info = task_info(
            len(classes.sizes) - 1,
            classes.sizes,
            stored=len(coreset) > 0,
            returning=tuple(known.tolist()),
        )
        data = TaskData(
            info,
            (given.images, slots),
            (coreset.images, coreset.labels),
            given.environment.images,
            config,
            normalization=normalization,
            placement=placement,
        )
        return cls(
            given,
            config,
            placement,
            classes,
            info,
            slots,
            coreset,
            normalization,
            data,
        )


def run_trainings(
    config: RunConfig,
    method: Method,
    trainings: Sequence[Training],
    data: TaskData,
    coreset: Coreset,
    name: str,
    snapshot: Snapshot | None,
    progress: Progress | None,
    keeper: Keeper | None,
) -> Trainer:
    """Run a task's trainings, or what a snapshot leaves of them."""

    def pause() -> None:
        if keeper is not None:
            keeper.pause(lambda: trainer.snapshot(coreset))

    trainer = Trainer(config, method, data.placement, progress, pause, data.info.number)
    if snapshot is not None:
        trainer.resume(snapshot)
    trainer.begin(sum(trainer.work_of(one, data.info, data.steps(one)) for one in trainings))
    try:
        trainer.learn(data.info, data, name)
    finally:
        trainer.progress.stop()
    return trainer


def _concluded(
    task: _Task,
    before: Trained | None,
    trainings: Sequence[Training],
    trainer: Trainer,
    sample: Sample,
) -> Trained:
    """Put together what is known after a task."""
    given, method, judgement = task.given, trainer.method, trainer.underway.judgement
    coreset = _remembered(task)
    explanation = _explained(task, judgement, sample)
    threshold = calibrated_threshold(method, task.info, task.data, judgement, given.accept)
    record = {
        **record_of(given, task.classes, explanation),
        **_record(task, trainings, trainer, coreset, threshold),
    }
    return Trained(
        config=task.config,
        placement=task.placement,
        labels=task.classes.labels,
        sizes=task.classes.sizes,
        image_size=task.side,
        normalization=task.normalization,
        history=(*(() if before is None else before.history), record),
        explanation=explanation,
        method=method,
        coreset=coreset,
        known_threshold=threshold,
        accept=given.accept,
    )


def _remembered(task: _Task) -> Coreset:
    """Return the coreset after a task."""
    given, sizes = task.given, task.classes.sizes
    unlabeled = given.environment.images
    experience = Experience(task.info.number, sizes, given.images, task.slots, unlabeled)
    return task.coreset.after(experience, task.config.seed)


def _explained(task: _Task, judgement: Judgement | None, sample: Sample) -> Explanation:
    given, labels = task.given, task.classes.labels
    if judgement is None:
        return Explanation(given.name, given.environment.seen, None, {}, [])
    found = explained(given, labels, judgement)
    images = given.environment.images
    return replace(
        found, examples=choose_examples(sample, judgement, labels, images, given.examples)
    )


def _record(
    task: _Task,
    trainings: Sequence[Training],
    trainer: Trainer,
    coreset: Coreset,
    threshold: float | None,
) -> dict[str, Any]:
    """Return what is told of a training afterwards, as JSON can hold it."""
    networks = trainer.method.networks.values()
    weights = (tensor for network in networks for tensor in network.state_dict().values())
    unlabeled = len(task.given.environment.images)
    return {
        "unlabeled_in": [t.name for t in trainings if t.unlabeled and unlabeled],
        "seconds": dict(trainer.underway.clock.seconds),
        "losses": {
            name: means["loss"][-1] for name, means in trainer.underway.losses.items() if means
        },
        "values": dict(trainer.method.values),
        "stored": len(coreset),
        "stored_bytes": coreset.bytes,
        "weights_bytes": sum(tensor.nbytes for tensor in weights),
        "known_threshold": threshold,
    }
