"""One task of a learner: from images and labels to networks that know more classes."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distillmatch.config import RunConfig
from distillmatch.engine import Judgement, Placement, Progress, Snapshot
from distillmatch.engine.data import TaskData
from distillmatch.engine.device import NetworkFactory
from distillmatch.engine.trainer import Trainer
from distillmatch.learner.environment import Environment
from distillmatch.learner.explanation import Explanation, Label
from distillmatch.learner.inputs import Pixels
from distillmatch.learner.labels import new_classes, slots_of
from distillmatch.learner.learned import Learned, fresh_method, grow, revived_method, task_info
from distillmatch.learner.recognition import (
    Sample,
    calibrated_threshold,
    choose_examples,
)
from distillmatch.methods import Method, TaskInfo, Training, find_method
from distillmatch.methods.contract import trainings_of
from distillmatch.randomness import permutation
from distillmatch.streams import Coreset, Experience
from distillmatch.views import Normalization


class Keeper(Protocol):
    """Keeps a task's snapshots, so that it can be continued."""

    def found(self, fingerprint: str) -> Snapshot | None:
        """Return where the task with this fingerprint stands, or refuse another's."""

    def pause(self, take: Callable[[], Snapshot]) -> None:
        """Keep a snapshot if one is due; called wherever one can be taken."""


@dataclass(frozen=True, eq=False)
class Given:
    """What a task brings."""

    name: str
    images: Pixels
    labels: Sequence[Label]
    environment: Environment
    known_rate: float
    examples: int

    def fingerprint(self, config: RunConfig, tasks: int) -> str:
        """Return what tells this task from another one on the same learner."""
        told = config.model_dump(mode="json", exclude={"device"})
        digest = hashlib.blake2b(repr((tasks, self.labels, told)).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.images).data)
        digest.update(np.ascontiguousarray(self.environment.images).data)
        return digest.hexdigest()


def learn_task(
    before: Learned | None,
    config: RunConfig,
    given: Given,
    progress: Progress | None = None,
    keeper: Keeper | None = None,
) -> Learned:
    """Learn a task; what was learned before stays as it is, whatever happens."""
    task = _Task.of(before, config, given)
    factory = NetworkFactory.of(config, task.info.seen, task.side, task.placement)
    sample = Sample.nothing()
    if before is None:
        method = fresh_method(config, factory)
    else:
        snapshot = before.snapshot()
        method = revived_method(config, len(task.known), task.side, task.placement, snapshot)
        images = given.environment.images
        sample = Sample.of(
            method, before.task, images, task.normalization, task.placement, config.seed
        )
        grow(method, factory)
    task.data.networks = method.networks
    # Asking for the trainings may give networks new weights: what was learned is put back later.
    trainings = trainings_of(method, task.info)
    trainer = _trained(task, method, trainings, progress, keeper)
    method.end_task(task.info)
    return _concluded(task, before, trainings, trainer, sample)


@dataclass(frozen=True, eq=False)
class _Task:
    """A task made ready: `known` classes and then all `labels`, and the data to learn from."""

    given: Given
    config: RunConfig
    placement: Placement
    known: tuple[Label, ...]
    labels: tuple[Label, ...]
    sizes: tuple[int, ...]
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
    def of(cls, before: Learned | None, config: RunConfig, given: Given) -> "_Task":
        """Number the classes and put the data on the device."""
        placement = Placement.of(config)
        last_batches = find_method(config.method).recipe_of(config).last_batches
        if before is None:
            known: tuple[Label, ...] = ()
            earlier: tuple[int, ...] = ()
            coreset = Coreset(config.coreset, given.images.shape[1])
            normalization = Normalization.of(given.images)
        else:
            known, earlier = before.labels, before.sizes
            coreset, normalization = before.coreset, before.normalization
        labels = (*known, *new_classes(known, given.labels))
        sizes = (*earlier, len(labels) - len(known))
        info = task_info(len(earlier), sizes, stored=len(coreset) > 0)
        slots = slots_of(labels, given.labels)
        data = TaskData(
            info,
            (given.images, slots),
            (coreset.images, coreset.labels),
            given.environment.images,
            normalization=normalization,
            placement=placement,
            seed=config.seed,
            batch=config.batch,
            unlabeled_batch=config.unlabeled_batch,
            last_batches=last_batches,
            stored_share=config.stored_share,
            resident_bytes=config.resident_bytes,
        )
        return cls(
            given,
            config,
            placement,
            known,
            labels,
            sizes,
            info,
            slots,
            coreset,
            normalization,
            data,
        )


def _trained(
    task: _Task,
    method: Method,
    trainings: Sequence[Training],
    progress: Progress | None,
    keeper: Keeper | None,
) -> Trainer:
    """Run the task's trainings, or what is left of them."""
    given, config, data = task.given, task.config, task.data
    nobody_knows = np.full(len(given.environment.images), -1, np.int64)

    def pause() -> None:
        if keeper is not None:
            keeper.pause(lambda: trainer.snapshot(task.coreset))

    trainer = Trainer(config, method, task.placement, progress, pause, task.info.number)
    if keeper is not None:
        snapshot = keeper.found(given.fingerprint(config, task.info.number))
        if snapshot is not None:
            trainer.resume(snapshot, nobody_knows)
    trainer.begin(sum(trainer.work_of(training, data.steps(training)) for training in trainings))
    try:
        trainer.learn(task.info, data, lambda: nobody_knows, given.name)
    finally:
        trainer.progress.stop()
    return trainer


def _concluded(
    task: _Task,
    before: Learned | None,
    trainings: Sequence[Training],
    trainer: Trainer,
    sample: Sample,
) -> Learned:
    """Put together what is known after a task."""
    method, judgement = trainer.method, trainer.underway.judgement
    coreset = _remembered(task)
    explanation = _explained(task, judgement, sample)
    threshold = calibrated_threshold(method, task.info, task.data, judgement, task.given.known_rate)
    record = _record(task, explanation, trainings, trainer, coreset, threshold)
    return Learned(
        config=task.config,
        placement=task.placement,
        method=method,
        labels=task.labels,
        sizes=task.sizes,
        image_size=task.side,
        normalization=task.normalization,
        coreset=coreset,
        history=(*(() if before is None else before.history), record),
        explanation=explanation,
        known_threshold=threshold,
    )


def _remembered(task: _Task) -> Coreset:
    """Return the coreset after a task; of a class that came back, old and new images are mixed."""
    given, seed, number = task.given, task.config.seed, task.info.number
    mixed = []
    for slot, stored in enumerate(task.coreset.by_class):
        images = np.concatenate([stored, given.images[task.slots == slot]])
        if len(images) > len(stored):
            images = images[permutation(len(images), seed, "returned", number, slot)]
        mixed.append(images)
    experience = Experience(number, task.sizes, given.images, task.slots, given.environment.images)
    return Coreset(task.coreset.capacity, task.side, tuple(mixed)).after(experience, seed)


def _explained(task: _Task, judgement: Judgement | None, sample: Sample) -> Explanation:
    name, environment = task.given.name, task.given.environment
    if judgement is None:
        return Explanation(name, environment.seen, None, {}, [])
    accepted = judgement.accepted
    counts = np.bincount(judgement.pseudo_labels[accepted], minlength=len(task.labels))
    return Explanation(
        name=name,
        seen=environment.seen,
        accepted=int(accepted.sum()),
        by_class={label: int(n) for label, n in zip(task.labels, counts, strict=True) if n},
        examples=choose_examples(
            sample, judgement, task.labels, environment.images, task.given.examples
        ),
    )


def _record(
    task: _Task,
    explanation: Explanation,
    trainings: Sequence[Training],
    trainer: Trainer,
    coreset: Coreset,
    threshold: float | None,
) -> dict[str, Any]:
    """Return what is told of a task afterwards, as JSON can hold it."""
    given, environment = task.given, task.given.environment
    came = Counter(given.labels)
    networks = trainer.method.networks.values()
    weights = (tensor for network in networks for tensor in network.state_dict().values())
    return {
        "name": given.name,
        "number": len(task.sizes),
        "added": list(task.labels[len(task.known) :]),
        "returned": [label for label in task.known if label in came],
        "labeled": len(given.labels),
        "labeled_by_class": {str(label): came[label] for label in task.labels if label in came},
        "seen": environment.seen,
        "kept": len(environment.images),
        "unreadable": environment.unreadable,
        "accepted": explanation.accepted,
        "accepted_by_class": {str(label): n for label, n in explanation.by_class.items()},
        "unlabeled_in": [t.name for t in trainings if t.unlabeled and len(environment.images)],
        "seconds": dict(trainer.underway.clock.seconds),
        "losses": {
            name: means["loss"][-1] for name, means in trainer.underway.losses.items() if means
        },
        "values": dict(trainer.method.values),
        "stored": len(coreset),
        "stored_bytes": coreset.bytes,
        "weights_bytes": sum(tensor.nbytes for tensor in weights),
        "known_threshold": threshold,
        "test": None,
    }
