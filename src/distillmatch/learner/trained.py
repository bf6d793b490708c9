"""What is learned by training networks: a task, and what is carried to the next one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.engine import Placement, Progress, Snapshot
from distillmatch.engine.data import TaskData
from distillmatch.engine.device import NetworkFactory
from distillmatch.engine.outcome import Underway
from distillmatch.engine.snapshot import restore_method, restored_coreset, take_snapshot
from distillmatch.engine.trainer import Trainer
from distillmatch.errors import ConfigError, LearnerError
from distillmatch.learner.inputs import PixelReader, Reader
from distillmatch.learner.keeper import Keeper
from distillmatch.learner.recognition import (
    calibrated_threshold,
    choose_examples,
    familiarity,
    sample_of,
    views_of,
)
from distillmatch.learner.task import Learned, Task
from distillmatch.methods import Method, TaskInfo, Training, make_method
from distillmatch.methods.contract import logits_of, trainings_of
from distillmatch.networks import Network
from distillmatch.randomness import random_integers
from distillmatch.streams import Coreset, Experience
from distillmatch.views import Normalization


@dataclass(frozen=True, eq=False)
class Trained(Learned):
    """Networks that a method trained, and the images that it keeps.

    `known_threshold` is the score below which an image is called unknown, for the share `accept`
    of known images.
    """

    method: Method
    coreset: Coreset
    known_threshold: float | None
    accept: float

    @classmethod
    def restored(
        cls, body: dict[str, Any], tensors: dict[str, Tensor], common: dict[str, Any]
    ) -> "Trained":
        """Return what was saved; `common` is what all kinds of learners have."""
        config, side = common["config"], common["image_size"]
        snapshot = Snapshot(body["snapshot"], tensors)
        classes, placement = len(common["labels"]), common["placement"]
        return cls(
            **common,
            method=revived_method(config, classes, side, placement, snapshot),
            coreset=restored_coreset(snapshot, Coreset(config.coreset, side)),
            known_threshold=body["known_threshold"],
            accept=body["accept"],
        )

    @property
    def task(self) -> TaskInfo:
        """The last task, as the method saw it."""
        return task_info(len(self.sizes) - 1, self.sizes, stored=False)

    @property
    def reader(self) -> Reader:
        """What reads images as pixels."""
        return PixelReader(self.image_size)

    def logits(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return a logit for each image and class."""
        found = [np.empty((0, len(self.labels)), np.float32)]
        for views in views_of(rows, self.normalization, self.placement):
            with torch.no_grad(), self.placement.autocast():
                logits = logits_of(self.method, views, len(self.labels))
            found.append(logits[:, : len(self.labels)].float().cpu().numpy())
        return np.concatenate(found)

    @property
    def gives_scores(self) -> bool:
        """Whether the method scores images."""
        return self.known_threshold is not None

    def familiarity(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return how familiar each image looks, where the method gives scores."""
        found = familiarity(self.method, self.task, rows, self.normalization, self.placement)
        assert found is not None
        return found

    def threshold(self, accept: float) -> float:
        """Return the threshold; one for another share would need another calibration."""
        assert self.known_threshold is not None
        if accept != self.accept:
            raise LearnerError(
                f"method '{self.config.method}' set its threshold for accept={self.accept:g} when "
                f"it learned, and cannot answer for accept={accept:g}; method 'features' can"
            )
        return self.known_threshold

    def classifier(self) -> nn.Module:
        """Return the method's classifier."""
        return self.method.classifier

    def snapshot(self) -> Snapshot:
        """Return weights, values and coreset as they can be written."""
        return take_snapshot(self.method, self.coreset, Underway(len(self.sizes)))

    def saved(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return weights, values and coreset, without frozen networks that equal their source."""
        snapshot = self.snapshot()
        kept = dict(snapshot.tensors)
        for name, of in snapshot.values["copies"].items():
            prefix = f"network/{name}/"
            copies = {key: key.removeprefix(prefix) for key in kept if key.startswith(prefix)}
            if all(
                torch.equal(kept[key], kept[f"network/{of}/{at}"]) for key, at in copies.items()
            ):
                kept = {key: tensor for key, tensor in kept.items() if key not in copies}
        values = {"known_threshold": self.known_threshold, "accept": self.accept}
        return {**values, "snapshot": snapshot.values}, kept


def learn_trained(
    before: Trained | None, task: Task, progress: Progress | None, keeper: Keeper | None
) -> Trained:
    """Learn a task by training; what was learned before is not changed."""
    config, placement, unlabeled = task.config, Placement.of(task.config), task.environment.images
    if before is None:
        coreset = Coreset(config.coreset, task.images.shape[1])
        normalization = Normalization.of(task.images)
    else:
        coreset, normalization = before.coreset, before.normalization
    side, number = coreset.image_size, len(task.sizes) - 1
    returning = np.unique(task.slots[task.slots < len(task.known)]).tolist()
    info = task_info(number, task.sizes, stored=len(coreset) > 0, returning=tuple(returning))
    data = TaskData(
        info,
        (task.images, task.slots),
        (coreset.images, coreset.labels),
        unlabeled,
        config,
        normalization=normalization,
        placement=placement,
    )
    factory = NetworkFactory.of(config, info.seen, side, placement)
    chosen, scores = np.empty(0, np.int64), None
    if before is None:
        method = fresh_method(config, factory)
    else:
        method = revived_method(config, len(task.known), side, placement, before.snapshot())
        chosen, scores = sample_of(
            method, before.task, unlabeled, normalization, placement, config.seed
        )
        grow(method, factory)
    data.networks = method.networks
    # Asking for the trainings may give networks new weights: what was learned is put back later.
    trainings = trainings_of(method, info)
    if keeper is not None:
        keeper.start(task.fingerprint)
    trainer = run_trainings(config, method, trainings, data, coreset, task.name, progress, keeper)
    method.end_task(info)
    experience = Experience(number, task.sizes, task.images, task.slots, unlabeled)
    coreset = coreset.after(experience, config.seed)
    underway = trainer.underway
    explanation = task.explained(underway.judgement)
    if underway.judgement is not None:
        examples = choose_examples(
            chosen, scores, underway.judgement, task.classes, unlabeled.__getitem__, task.examples
        )
        explanation = replace(explanation, examples=examples)
    threshold = calibrated_threshold(method, info, data, underway.judgement, task.accept)
    record = {
        **task.record(explanation),
        "unlabeled_in": [one.name for one in trainings if one.unlabeled and len(unlabeled)],
        "seconds": dict(underway.clock.seconds),
        "losses": {name: means["loss"][-1] for name, means in underway.losses.items() if means},
        "values": dict(method.values),
        "stored": len(coreset),
        "stored_bytes": coreset.bytes,
        "weights_bytes": sum(map(bytes_of, method.networks.values())),
        "known_threshold": threshold,
    }
    return Trained(
        config=config,
        placement=placement,
        labels=task.classes,
        sizes=task.sizes,
        image_size=side,
        normalization=normalization,
        history=(*(() if before is None else before.history), record),
        explanation=explanation,
        method=method,
        coreset=coreset,
        known_threshold=threshold,
        accept=task.accept,
    )


def run_trainings(
    config: RunConfig,
    method: Method,
    trainings: Sequence[Training],
    data: TaskData,
    coreset: Coreset,
    name: str,
    progress: Progress | None,
    keeper: Keeper | None,
) -> Trainer:
    """Run a task's trainings, or what is left of them."""

    def pause() -> None:
        if keeper is not None:
            keeper.pause(lambda: trainer.snapshot(coreset))

    trainer = Trainer(config, method, data.placement, progress, pause, data.info.number)
    if keeper is not None and keeper.snapshot is not None:
        trainer.resume(keeper.snapshot)
    trainer.begin(sum(trainer.work_of(one, data.info, data.steps(one)) for one in trainings))
    try:
        trainer.learn(data.info, data, name)
    finally:
        trainer.progress.stop()
    return trainer


def bytes_of(network: nn.Module) -> int:
    """Return the size of a network's weights."""
    return sum(value.nbytes for value in network.state_dict().values())


def task_info(
    number: int, sizes: tuple[int, ...], *, stored: bool, returning: tuple[int, ...] = ()
) -> TaskInfo:
    """Return a task as methods see it.

    Methods distil each earlier task among its own classes. One without classes is left out, and one
    with a single class, which alone would have nothing to differ from, is joined with the task
    before it. No task is the last one: more may follow.
    """
    earlier: list[int] = []
    for size in sizes[:-1]:
        if earlier and size and 1 in (size, earlier[-1]):
            earlier[-1] += size
        elif size:
            earlier.append(size)
    return TaskInfo(number, (*earlier, sizes[-1]), False, stored, returning)


def fresh_method(config: RunConfig, factory: NetworkFactory) -> Method:
    """Return a method that has learned nothing."""
    method = make_method(config, factory)
    if method.needs_truth:
        raise ConfigError(
            f"method '{config.method}' needs the true classes of unlabeled images with these "
            "options, and they are unknown"
        )
    return method


def revived_method(
    config: RunConfig, classes: int, image_size: int, placement: Placement, snapshot: Snapshot
) -> Method:
    """Return a method of its own with what was learned of so many classes.

    All weights come from the snapshot, so a file of pretrained ones need not be there any more.
    """
    factory = NetworkFactory(config.network, classes, config.seed, placement, image_size)
    method = fresh_method(config, factory)
    names = {
        place.removeprefix("network/").rpartition("/")[0]
        for place in snapshot.tensors
        if place.startswith("network/")
    }
    for name in sorted(names - set(method.networks) - set(snapshot.values["copies"])):
        # One that the method makes when a task begins, such as a teacher.
        method.networks[name] = method.build(name)
    restore_method(snapshot, method)
    for name, of in snapshot.values["copies"].items():
        if name not in names:
            method.frozen_copy(name, of)
    return method


def grow(method: Method, factory: NetworkFactory) -> None:
    """Give all networks of a method room for as many classes as those have that it will make."""
    config, classes = method.config, factory.classes
    for name, network in method.networks.items():
        if not isinstance(network, Network):
            raise LearnerError(
                f"network '{name}' of method '{config.method}' cannot be given more classes: it "
                "was not made by the method's `build`"
            )
        generator = torch.Generator()
        number = random_integers(config.seed, "growth", name, classes, count=1)[0] >> np.uint64(1)
        generator.manual_seed(int(number))
        network.grow(classes, generator)
        factory.placement.place(network).requires_grad_(name not in method.copies)
    method.builder = factory
