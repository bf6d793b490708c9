"""A learned score of newness: which unlabeled images look like the classes that a task brings.

There are no images of past classes to learn a score from, but of the new ones there are. When a
task begins, a network that starts as the last classifier learns to distinguish the new classes, and
to be uncertain about the environment's images (Lee et al. 2019, as GD's teacher), on half of the
labels. An image is the more familiar the less certain the network is of any new class.
"""

from typing import NamedTuple

from torch import Tensor

from distillmatch.losses import softmax_confidence, threshold_at_fpr
from distillmatch.methods.detector import CALIBRATION_VIEWS, held_out_images
from distillmatch.methods.forward import Batch
from distillmatch.methods.method import Method, Passes, TaskInfo, Training
from distillmatch.methods.schedule import detector_schedule
from distillmatch.methods.teacher import new_task_loss, start_network

NEWNESS = "newness"


class Uncertainty(NamedTuple):
    """How uncertain the network is of any new class, and which of them it would be."""

    score: Tensor
    label: Tensor


class Newness:
    """The network that knows the new classes of a task, and its threshold.

    Of a single new class a network is always certain: then there is no score.
    """

    def __init__(self, method: Method) -> None:
        self.method = method

    def training(self, task: TaskInfo) -> list[Training]:
        """Return the network's training, where there are several new classes beside past ones."""
        if not self.applies(task):
            return []
        return [
            Training(
                name=NEWNESS,
                network=start_network(self.method, task, NEWNESS, from_past=True),
                loss=self.loss,
                schedule=detector_schedule(self.method.config, self.method.rate),
                labeled="first-half",
                clip=self.method.clip,
            )
        ]

    def applies(self, task: TaskInfo) -> bool:
        """Return whether images are scored in a task."""
        return task.past > 0 and task.new > 1

    def loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        """Return the loss of GD's calibrated teacher."""
        return new_task_loss(self.method.networks[NEWNESS], batch, task, calibrated=True)

    def score(self, images: Tensor, task: TaskInfo) -> Uncertainty:
        """Return the negative of the largest probability of a new class, and that class."""
        logits = self.method.networks[NEWNESS](images)[:, task.past : task.seen]
        label = task.past + logits.argmax(dim=1)
        return Uncertainty(-softmax_confidence(logits, task.new), label)

    def calibrate(self, passes: Passes, task: TaskInfo, share: float) -> None:
        """Set the threshold to the score that a share of held-out images of new classes reach."""
        over = held_out_images(passes)
        new = passes.labels(over) >= task.past
        if self.applies(task) and new.any():
            scores = passes.run(self.score, over, CALIBRATION_VIEWS).score
            threshold = threshold_at_fpr(scores[new.repeat(CALIBRATION_VIEWS)], share)
            self.method.values["threshold"] = float(threshold)
