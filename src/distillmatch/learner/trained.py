"""What was learned by training networks, and the method that is made ready again with it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.engine import Placement, Snapshot
from distillmatch.engine.device import NetworkFactory
from distillmatch.engine.outcome import Underway
from distillmatch.engine.snapshot import restore_method, restored_coreset, take_snapshot
from distillmatch.errors import ConfigError, LearnerError
from distillmatch.learner.inputs import PixelReader, Reader
from distillmatch.learner.learned import Learned
from distillmatch.learner.recognition import familiarity, views_of
from distillmatch.methods import Method, TaskInfo, make_method
from distillmatch.methods.contract import logits_of
from distillmatch.networks import Network
from distillmatch.randomness import random_integers
from distillmatch.streams import Coreset


@dataclass(frozen=True, eq=False)
class Trained(Learned):
    """Networks that a method trained, and the images that it keeps.

    `known_threshold` is the score below which an image is called unknown, by the share `accept`
    that it was set for.
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
        """The last task, as the method was told of it."""
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

    def saved(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return weights, values and coreset."""
        snapshot = self.snapshot()
        values = {"known_threshold": self.known_threshold, "accept": self.accept}
        return {**values, "snapshot": snapshot.values}, _without_copies(snapshot)

    def snapshot(self) -> Snapshot:
        """Return weights, values and coreset as they can be written."""
        return take_snapshot(self.method, self.coreset, Underway(len(self.sizes)))


def task_info(
    number: int, sizes: tuple[int, ...], *, stored: bool, returning: tuple[int, ...] = ()
) -> TaskInfo:
    """Return what a method is told of a task.

    Methods distil each earlier task among its own classes. One without classes is left out, and one
    with a single class, which alone would have nothing to be told from, is joined with the task
    before it. No task is the last one, for nobody knows what comes next month.
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
            "options, and nobody knows them"
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


def _without_copies(snapshot: Snapshot) -> dict[str, Tensor]:
    """Leave out frozen networks that are as the ones they were copied from."""
    kept = dict(snapshot.tensors)
    for name, of in snapshot.values["copies"].items():
        copies = {
            place: place.removeprefix(f"network/{name}/")
            for place in kept
            if place.startswith(f"network/{name}/")
        }
        if all(
            torch.equal(kept[place], kept[f"network/{of}/{key}"]) for place, key in copies.items()
        ):
            kept = {place: tensor for place, tensor in kept.items() if place not in copies}
    return kept
