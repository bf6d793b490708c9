"""What a learner has learned, and the method that is made ready again with it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from distillmatch.config import RunConfig
from distillmatch.engine import Placement, Snapshot
from distillmatch.engine.device import NetworkFactory
from distillmatch.engine.outcome import Underway
from distillmatch.engine.snapshot import restore_method, take_snapshot
from distillmatch.errors import ConfigError, LearnerError
from distillmatch.learner.explanation import Explanation, Label
from distillmatch.methods import Method, TaskInfo, make_method
from distillmatch.networks import Network
from distillmatch.randomness import random_integers
from distillmatch.streams import Coreset
from distillmatch.views import Normalization


@dataclass(frozen=True, eq=False)
class Learned:
    """All that is carried from one task to the next.

    `labels` are the classes in the order of the networks' outputs, `sizes` how many each task
    added. `known_threshold` is the score below which an image is called unknown.
    """

    config: RunConfig
    placement: Placement
    method: Method
    labels: tuple[Label, ...]
    sizes: tuple[int, ...]
    image_size: int
    normalization: Normalization
    coreset: Coreset
    history: tuple[dict[str, Any], ...]
    explanation: Explanation
    known_threshold: float | None

    @property
    def task(self) -> TaskInfo:
        """The last task, as the method was told of it."""
        return task_info(len(self.sizes) - 1, self.sizes, stored=False)

    def snapshot(self) -> Snapshot:
        """Return weights, values and coreset as they can be written."""
        return take_snapshot(self.method, self.coreset, Underway(len(self.sizes)), 0.0)


def task_info(number: int, sizes: tuple[int, ...], *, stored: bool) -> TaskInfo:
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
    return TaskInfo(number, (*earlier, sizes[-1]), last=False, coreset=stored)


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
