"""The contract between a method and the engine.

A method says what is learned and by which loss; the engine says how. Most methods are one loss:
they declare what their batches need, and write `loss(self, batch, task)`.
`distillmatch.checks.check_method` checks a method against the contract.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from distillmatch.config import RECIPES, MethodOptions, Recipe, RunConfig
from distillmatch.methods.forward import Batch, Logits, joint_logits
from distillmatch.methods.schedule import Schedule, main_schedule
from distillmatch.networks import Head, InitialWeights

ImageSet = Literal["labeled", "new", "first-half", "second-half", "coreset", "unlabeled"]
"""`labeled`: the task's labeled images and the coreset; `new`: the task's alone. The halves are
the first and the second half of each class's images in `labeled`."""
HIGH_RATE = 0.1
"""The paper's learning rate of DM, Base and the upper bound; with a coreset, of every method."""


@dataclass(frozen=True)
class TaskInfo:
    """Where in the stream a method stands. Classes are numbered in the order they are learned.

    `returning` are classes of earlier tasks of which this one brings further labeled images.
    """

    number: int
    sizes: tuple[int, ...]
    last: bool
    coreset: bool
    returning: tuple[int, ...] = ()

    @property
    def past(self) -> int:
        """The number of classes of earlier tasks: the first so many outputs."""
        return sum(self.sizes[:-1])

    @property
    def new(self) -> int:
        """The number of classes that this task is the first to have labels of."""
        return self.sizes[-1]

    @property
    def classes(self) -> Sequence[int]:
        """The classes that this task has labels of: those that return, and the new ones."""
        new = range(self.past, self.seen)
        return (*self.returning, *new) if self.returning else new

    @property
    def seen(self) -> int:
        """The number of classes of this task and all before it."""
        return sum(self.sizes)


class Past(NamedTuple):
    """Logits of the frozen copy of the last classifier."""

    past: Tensor


class PseudoLabels(NamedTuple):
    """The label that each unlabeled image is given, and whether it is accepted."""

    labels: Tensor
    accepted: Tensor


def no_pseudo_labels(like: Tensor) -> PseudoLabels:
    """Return the pseudo-labels of no images, on a tensor's device."""
    nothing = like.new_zeros(0)
    return PseudoLabels(nothing.long(), nothing.bool())


Terms = Tensor | dict[str, Tensor]
"""A loss: one number, or named terms that are added up and logged."""
Loss = Callable[[Batch, TaskInfo], Terms]
Frozen = Callable[[Tensor, TaskInfo], Any]
"""Runs frozen networks on images; returns a NamedTuple of tensors with a row for each image."""


class Passes(Protocol):
    """Whole passes through a task's data, for what is counted or calibrated outside of training."""

    truth: Tensor | None
    """The true classes of unlabeled images, for methods with `needs_truth` alone."""

    def run(
        self, frozen: Frozen, over: ImageSet, views: int = 1, by_batch: tuple[str, ...] = ()
    ) -> Any:
        """Return the outputs of frozen networks for `views` weak views of every image of a set.

        The rows of one view are together. The networks that `by_batch` names normalize by batches
        as large as a step's.
        """

    def count(self, over: ImageSet) -> int:
        """Return the number of images in a set."""

    def labels(self, over: ImageSet) -> Tensor:
        """Return the classes of a labeled set's images, in the order of their outputs."""

    def label_counts(self, over: ImageSet) -> Tensor:
        """Return the number of images of each seen class in a labeled set."""


Hook = Callable[[Passes, TaskInfo], None]


@dataclass(frozen=True)
class Lars:
    """Layer-wise adaptive rates (LARS), with the run's momentum.

    A weight matrix or kernel w of gradient g moves by `trust` ‖w‖ / (‖g‖ + β ‖w‖) times the rate,
    with weight decay β. Biases and normalization are not adapted and not decayed. The head learns
    at `head_rate` times the rate of the rest.
    """

    weight_decay: float = 0.0
    head_rate: float = 1.0
    trust: float = 0.001


@dataclass(frozen=True)
class Training:
    """One network trained by one loss for some epochs.

    - `before` and `after` are called around it. A run that is resumed inside a task calls `before`
      again, of the training it stopped in and of those before it: it may count images and run
      frozen networks, and must change no network.
    - With `parameters="head"` the head alone is trained, and the rest of the network normalizes by
      running statistics unless `head_statistics` are those of the batch.
    - With `average_decay` the network ends as the moving average of its weights over all steps.
    - `stored_share` is the share of stored images in a labeled batch, unless the run gives one.
    - `frozen_labeled` and `frozen_unlabeled` run frozen networks on the weak views of all steps
      beforehand; those that `by_batch` names normalize unlabeled images by the steps' batches.
    - With `per_class` a labeled batch is a support set: so many images of each class that has any,
      in the order of the classes, drawn anew for each step, whatever the run's batch size.
    - An epoch is a pass over the labeled images or, with `epoch_of="unlabeled"`, over the unlabeled
      ones, while the labeled images go round. `optimizer` stands in for the run's.
    """

    name: str
    network: nn.Module
    loss: Loss
    schedule: Schedule
    labeled: ImageSet = "labeled"
    unlabeled: bool = True
    strong: bool = False
    strong_labeled: bool = False
    stored_share: float | None = None
    per_class: int | None = None
    epoch_of: Literal["labeled", "unlabeled"] = "labeled"
    optimizer: Lars | None = None
    clip: float | None = None
    parameters: Literal["all", "head"] = "all"
    head_statistics: Literal["running", "batch"] = "running"
    average_decay: float | None = None
    frozen_labeled: Frozen | None = None
    frozen_unlabeled: Frozen | None = None
    by_batch: tuple[str, ...] = ()
    before: Hook | None = None
    after: Hook | None = None

    @property
    def epochs(self) -> int:
        """The number of epochs."""
        return self.schedule.epochs

    def views_in_step(self, batch: int, unlabeled_batch: int, task: TaskInfo) -> int:
        """Return the number of views in a step of a task with batches of these sizes."""
        of_unlabeled = unlabeled_batch * (self.unlabeled + self.strong)
        return self.labeled_batch(batch, task) * (1 + self.strong_labeled) + of_unlabeled

    def labeled_batch(self, batch: int, task: TaskInfo) -> int:
        """Return the labeled images in a step of a task, with the run's batch size."""
        if self.per_class is None:
            return batch
        return self.per_class * (task.seen if task.coreset else task.new)


NetworkBuilder = Callable[[str, Head, InitialWeights], nn.Module]
"""Makes networks where the engine wants them, with weights decided by the seed and the name."""


class Method(ABC):
    """A way to learn the tasks of a stream one after another.

    A subclass declares its `Options`, says what its batches need, and writes `loss`. One that needs
    more than one training a task writes `trainings`. What it carries from one task to the next is
    in `networks`, `values` and `tensors`, which are kept when a run is interrupted and resumed.
    """

    Options: ClassVar[type[MethodOptions]] = MethodOptions
    unlabeled: ClassVar[bool] = True
    """Whether batches have unlabeled images."""
    strong_views: ClassVar[bool] = False
    """Whether batches have strong views of the unlabeled images."""
    keeps_past: ClassVar[bool] = False
    """Whether a frozen copy of the classifier is kept after each task, whose logits are
    `batch.past` in the next."""
    learning_rate: ClassVar[float] = HIGH_RATE
    """The initial learning rate without a coreset, unless the configuration gives one."""
    clip: ClassVar[float | None] = None
    """The largest norm of the gradient of all parameters together."""
    memory: ClassVar[Literal["coreset", "everything"]] = "coreset"
    """Which labeled images of earlier tasks it is given; upper bounds get everything."""
    independent_tasks: ClassVar[bool] = False
    """Whether nothing is carried from task to task, so that they may be learned in any order."""
    fine_tunes_first_task: ClassVar[bool] = False
    """Whether fine-tuning, where there is a coreset, ends the first task too."""
    lasting_options: ClassVar[tuple[str, ...]] = ()
    """Options that cannot change once a task is learned."""
    fixed_recipe: ClassVar[Recipe | None] = None
    """The recipe of a method that is not the paper's, whatever the configuration says."""
    needs_truth: bool = False
    """Whether it is given the true classes of unlabeled images; its results are marked."""

    def __init__(self, config: RunConfig, build: NetworkBuilder) -> None:
        self.config = config
        self.options: Any = self.Options(**config.options)
        self.builder = build
        self.networks: dict[str, nn.Module] = {"classifier": self.build("classifier")}
        self.values: dict[str, float] = {}
        self.tensors: dict[str, Tensor] = {}
        self.copies: dict[str, str] = {}

    def build(self, name: str, head: Head = "linear") -> nn.Module:
        """Return a fresh network, with a linear head or a detector's."""
        return self.builder(name, head, self.recipe.initial_weights)

    @property
    def classifier(self) -> nn.Module:
        """The network that predicts."""
        return self.networks["classifier"]

    @classmethod
    def recipe_of(cls, config: RunConfig) -> Recipe:
        """Return how the points are computed in which the recipes differ."""
        return cls.fixed_recipe or RECIPES[config.recipe]

    @property
    def recipe(self) -> Recipe:
        """How the points are computed in which the recipes differ."""
        return self.recipe_of(self.config)

    @property
    def rate(self) -> float:
        """The initial learning rate; with a coreset the paper has one for all methods."""
        chosen = self.config.learning_rate
        return chosen or (HIGH_RATE if self.config.coreset else self.learning_rate)

    @abstractmethod
    def loss(self, batch: Batch, task: TaskInfo) -> Terms:
        """Return the classifier's loss of a batch: a number, or named terms to be added up."""

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Return what is trained in a task, in order; called before anything of it runs."""
        return [self.training(task)]

    def training(self, task: TaskInfo, **changes: Any) -> Training:
        """Return the classifier's training by `loss`, with some fields of it changed."""
        past = self.past_outputs if self.keeps_past and task.past else None
        values: dict[str, Any] = {
            "name": "classifier",
            "network": self.classifier,
            "loss": self.loss,
            "schedule": main_schedule(self.config, self.rate),
            "unlabeled": self.unlabeled,
            "strong": self.unlabeled and self.strong_views,
            "strong_labeled": self.config.strong_labels,
            "clip": self.clip,
            "average_decay": self.config.weight_averaging,
            "frozen_labeled": past,
            "frozen_unlabeled": past,
        }
        return Training(**(values | changes))

    def forward(self, batch: Batch, task: TaskInfo) -> Logits:
        """Return the classifier's logits of all views of a step, by one forward."""
        return joint_logits(self.classifier, batch, task.seen)

    def past_outputs(self, images: Tensor, task: TaskInfo) -> Past:
        """Return the past classifier's logits."""
        return Past(self.networks["past"](images))

    def end_task(self, task: TaskInfo) -> None:
        """Do what is left once a task's trainings are over."""
        if self.keeps_past:
            self.frozen_copy("past", of="classifier")

    def logits(self, images: Tensor) -> Tensor:
        """Return the outputs by which test images are classified."""
        logits: Tensor = self.classifier(images)
        return logits

    def familiarity(self, images: Tensor, task: TaskInfo) -> Tensor | None:
        """Score how familiar images look after this task, if the method does that."""
        return None

    def judge(self, outputs: Any, task: TaskInfo, truth: Tensor | None) -> PseudoLabels | None:
        """Return the pseudo-labels of unlabeled images for the diagnostics, if there are any.

        `outputs` are those of `frozen_unlabeled`; `truth` is for methods with `needs_truth`.
        """
        return None

    def frozen_copy(self, name: str, of: str) -> nn.Module:
        """Copy a network's weights into the frozen network `name`, and return that."""
        if name not in self.networks:
            copy = deepcopy(self.networks[of]).requires_grad_(False)
            copy.zero_grad(set_to_none=True)
            self.networks[name] = copy.eval()
            self.copies[name] = of
        self.networks[name].load_state_dict(self.networks[of].state_dict())
        return self.networks[name]

    def start_afresh(self, name: str, task: TaskInfo, *, from_past: bool = False) -> nn.Module:
        """Give a network new initial weights, other ones in every task, or the past classifier's.

        A run that is resumed inside a task has no past classifier yet; its weights are restored.
        """
        fresh = self.build(f"{name} of task {task.number + 1}")
        if name not in self.networks:
            self.networks[name] = fresh
        else:
            self.networks[name].load_state_dict(fresh.state_dict())
        if from_past and "past" in self.networks:
            self.networks[name].load_state_dict(self.networks["past"].state_dict())
        return self.networks[name]


def count_labels(labels: Tensor, classes: int, counted: Tensor | None = None) -> Tensor:
    """Count labels by class, of the rows where `counted` is true, without leaving the device."""
    rows = torch.ones_like(labels, dtype=torch.float32) if counted is None else counted.float()
    counts = torch.zeros(classes, device=labels.device)
    return counts.index_add(0, labels.clamp(0, classes - 1), rows)
