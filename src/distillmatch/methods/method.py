"""The contract between a method and the engine.

A method says what is trained in a task and by which loss; the engine says how. A method is given
batches of one shape, or of few where last ones are short, and returns one number to make smaller.
What its frozen models have to say about an epoch's views is asked once for the whole epoch, through
`Training.score_images` and `Training.score_unlabeled`, and comes back with each batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from distillmatch.config import RunConfig
from distillmatch.methods.schedule import Schedule

Scores = dict[str, Tensor]
"""What frozen models say of images: named tensors with one row an image."""

ScoreFunction = Callable[[Tensor], Scores]
ImageSet = Literal["labeled", "new", "first-half", "second-half", "coreset", "unlabeled"]
"""`labeled`: the task's labelled images and the coreset; `new`: the task's alone. The halves are
the first and the second half of each class's images in `labeled`."""


@dataclass(frozen=True)
class TaskInfo:
    """Where in the stream a method stands."""

    number: int
    sizes: tuple[int, ...]
    last: bool
    coreset: bool

    @property
    def past(self) -> int:
        """Classes of earlier tasks: the first so many outputs."""
        return sum(self.sizes[:-1])

    @property
    def new(self) -> int:
        """Classes of this task."""
        return self.sizes[-1]

    @property
    def seen(self) -> int:
        """Classes of this task and all before it."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Batch:
    """What one step learns from.

    `images` are weak views of labelled images, `labels` their class slots; `unlabeled` are weak
    views of unlabelled images. `strong` are strong views of the same unlabelled images and
    `strong_images` of the same labelled ones, where the training asked for them. `of_images` and
    `of_unlabeled` hold what the frozen models said of the weak views.
    """

    images: Tensor
    labels: Tensor
    unlabeled: Tensor
    strong: Tensor | None = None
    strong_images: Tensor | None = None
    of_images: Scores = field(default_factory=dict)
    of_unlabeled: Scores = field(default_factory=dict)


class Passes(Protocol):
    """Whole passes through a task's data, for what is counted or calibrated outside of training."""

    def score(self, score: ScoreFunction, over: ImageSet, views: int = 1) -> Scores:
        """Score `views` weak views of every image of a set; rows of one view follow each other."""

    def note(self, notes: Scores) -> None:
        """Let rows, one for each unlabelled image, come back with its views from now on.

        They are forgotten with the task; `before` makes them again where a run is continued.
        """

    def count(self, over: ImageSet) -> int:
        """Return how many images a set holds."""

    def labels(self, over: ImageSet) -> Tensor:
        """Return the classes of a labelled set's images, in the order in which they are scored."""

    def label_counts(self, over: ImageSet) -> Tensor:
        """Return how many images of each seen class a labelled set holds."""


@dataclass(frozen=True)
class Training:
    """One network trained by one loss for so many epochs.

    `before` and `after` are called around it. A run that is continued inside a task calls `before`
    again, of the training it stopped in and of those before it: let it count and look things up
    with the task's data and frozen networks, and change no network. Where the head alone is
    trained, the rest of the network normalizes as at test time, unless `head_statistics` are those
    of the batch, which then move the running ones too. With `average_decay` the network ends as the
    exponential average of its weights over all steps, and `after` finds it so.
    """

    name: str
    network: nn.Module
    loss: Callable[[Batch], Tensor]
    schedule: Schedule
    labeled: ImageSet = "labeled"
    unlabeled: bool = True
    strong: bool = False
    strong_labeled: bool = False
    clip: float | None = None
    parameters: Literal["all", "head"] = "all"
    head_statistics: Literal["running", "batch"] = "running"
    average_decay: float | None = None
    score_images: ScoreFunction | None = None
    score_unlabeled: ScoreFunction | None = None
    before: Callable[[Passes], None] | None = None
    after: Callable[[Passes], None] | None = None

    @property
    def epochs(self) -> int:
        """How many epochs it takes."""
        return self.schedule.epochs

    def views_in_step(self, batch: int, unlabeled_batch: int) -> int:
        """Return how many views a step takes of batches of so many images."""
        of_unlabeled = unlabeled_batch * (self.unlabeled + self.strong)
        return batch * (1 + self.strong_labeled) + of_unlabeled


class NetworkBuilder(Protocol):
    """Makes networks where the engine wants them, with weights decided by the seed and the name."""

    def __call__(self, name: str, similarity: str | None = None) -> nn.Module:
        """Return a fresh network; with `similarity`, one whose head is a detector's."""


class Method(ABC):
    """A way to learn the tasks of a stream one after another.

    `memory` says which labelled images of earlier tasks it is given: the coreset, or, for bounds
    that are no continual learners, everything. A method with `needs_truth` is given the true labels
    of unlabelled images and is marked so in its results. What it carries from one task to the next
    is in `networks`, `values` and `tensors`: these are kept when a run is interrupted and
    continued. With `independent_tasks` it carries nothing, and its tasks may be learned in any
    order or side by side.
    """

    memory: ClassVar[Literal["coreset", "everything"]] = "coreset"
    independent_tasks: ClassVar[bool] = False
    needs_truth: bool = False

    def __init__(self, config: RunConfig, build: NetworkBuilder) -> None:
        self.config = config
        self.build = build
        self.networks: dict[str, nn.Module] = {"classifier": build("classifier")}
        self.values: dict[str, float] = {}
        self.tensors: dict[str, Tensor] = {}
        self.copies: dict[str, str] = {}

    @property
    def classifier(self) -> nn.Module:
        """The network that predicts."""
        return self.networks["classifier"]

    @property
    def learns_strong_labels(self) -> bool:
        """Whether labelled images are to be learned by strong views of them too."""
        return self.config.strong_labels != "none"

    @abstractmethod
    def trainings(self, task: TaskInfo) -> list[Training]:
        """Return what is trained in a task, in order; called before anything of it runs."""

    def end_task(self, task: TaskInfo) -> None:
        """Do what is left once a task's trainings are over, such as keeping a frozen copy."""
        return

    def logits(self, images: Tensor) -> Tensor:
        """Return the outputs by which test images are classified."""
        logits: Tensor = self.classifier(images)
        return logits

    def familiarity(self, images: Tensor, task: TaskInfo) -> Tensor | None:
        """Score how much images look like classes seen up to this task, if the method does that."""
        return None

    def judge(self, scores: Scores, task: TaskInfo) -> tuple[Tensor, Tensor] | None:
        """Return the pseudo-label of each unlabelled image, and whether it is accepted."""
        return None

    def frozen_copy(self, name: str, of: str) -> nn.Module:
        """Copy a network's weights into the frozen network called `name`, and return that."""
        if name not in self.networks:
            copy = deepcopy(self.networks[of]).requires_grad_(False)
            copy.zero_grad(set_to_none=True)
            self.networks[name] = copy.eval()
            self.copies[name] = of
        self.networks[name].load_state_dict(self.networks[of].state_dict())
        return self.networks[name]

    def start_afresh(self, name: str, task: TaskInfo) -> nn.Module:
        """Give a network new initial weights, other ones in every task."""
        fresh = self.build(f"{name} of task {task.number + 1}")
        if name not in self.networks:
            self.networks[name] = fresh
        else:
            self.networks[name].load_state_dict(fresh.state_dict())
        return self.networks[name]


def no_rows(images: Tensor) -> bool:
    """Tell whether a batch is empty; its shape is fixed, so this asks nothing of the device."""
    return images.shape[0] == 0


def count_labels(labels: Tensor, classes: int, counted: Tensor | None = None) -> Tensor:
    """Count labels by class, of the rows where `counted` is true, without leaving the device."""
    rows = torch.ones_like(labels, dtype=torch.float32) if counted is None else counted.float()
    counts = torch.zeros(classes, device=labels.device)
    return counts.index_add(0, labels.clamp(0, classes - 1), rows)
