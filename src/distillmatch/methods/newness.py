"""The gate that learns what is new in a task: all that does not look like it is accepted."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from distillmatch.losses import softmax_confidence
from distillmatch.methods.detector import held_out_images
from distillmatch.methods.gate import GATE, ThresholdGate, all_accepted
from distillmatch.methods.method import Batch, Method, Passes, Scores, TaskInfo, Training
from distillmatch.methods.parts import HIGH_RATE
from distillmatch.methods.schedule import detector_schedule
from distillmatch.methods.teacher import new_task_loss, start_network

NEWNESS = "newness"
OF_HALVES = (f"{NEWNESS} of even images", f"{NEWNESS} of odd images")
HALF = "half"
"""Which of them has learned an unlabelled image."""
STRANGERS_ACCEPTED = 0.5
"""Share of new classes' images that a gate which knows strangers alone is set to accept."""


class NewnessGate(ThresholdGate):
    """Accepts all images but those that look like the classes that are new in a task.

    Of past classes there are no images to learn a gate from; of the new ones there are. At the
    beginning of every task a network that starts as the last classifier learns to tell the new
    classes apart, and to be unsure of the environment's images (Lee et al. 2019, as GD's teacher),
    on half of the labels. An image is the more familiar the less sure of any new class it is. The
    threshold is the score that a share of the held-out images of the new classes reach. Images of
    classes that come later are accepted: what θₙ₋₁ says of them is part of what it knows. Of a
    single new class the network is always sure; then everything is accepted.
    """

    judges_tests = False

    def __init__(self, method: Method) -> None:
        super().__init__(method)
        self.new = range(0)

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train the network that knows the new classes, where there are past ones beside them."""
        return [self.training(task, NEWNESS)] if self._known_as_new(task) else []

    def training(
        self, task: TaskInfo, name: str, unsure_of: Callable[[Batch], Tensor | None] | None = None
    ) -> Training:
        """Train a network, unsure of all unlabelled images or of those that are said."""
        config = self.method.config
        network = start_network(self.method, task, name, "past")

        def loss(batch: Batch) -> Tensor:
            learned = None if unsure_of is None else unsure_of(batch)
            return new_task_loss(network, batch, task, calibrated=True, unsure_of=learned)

        return Training(
            name=name,
            network=network,
            loss=loss,
            schedule=detector_schedule(config, HIGH_RATE),
            labeled="first-half",
            clip=config.clip,
        )

    def prepare(self, passes: Passes, task: TaskInfo) -> None:
        """Set the threshold on the new classes' images that the network has not learned."""
        self.new = self._known_as_new(task)
        if self.new:
            given = self.method.config.false_positive_rate
            rate = STRANGERS_ACCEPTED if given is None else given
            self.set_threshold_on_strangers(passes, task, held_out_images(passes), rate)

    def ask(self, images: Tensor, classes: int, network: str) -> tuple[Tensor, Scores]:
        """Return how unsure of all new classes the network is: less its largest probability."""
        logits = self.method.networks[network](images)
        if not self.new:
            return logits, {}
        return logits, {GATE: self._unsureness(images, NEWNESS)}

    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Compare with the threshold, where there is something to compare."""
        return super().accepts(scores, task) if self.new else all_accepted(scores)

    def _unsureness(self, images: Tensor, name: str) -> Tensor:
        of_new = self.method.networks[name](images)[:, self.new.start : self.new.stop]
        return -softmax_confidence(of_new, len(self.new))

    def _known_as_new(self, task: TaskInfo) -> range:
        """Return the classes that images are rejected as in a task: the new ones, if several."""
        return range(task.past, task.seen) if task.past and task.new > 1 else range(0)


class CrossedNewnessGate(NewnessGate):
    """The same by two networks, each unsure of half of the unlabelled images, judging the rest.

    A network can learn by heart which images it is to be unsure of, those of new classes too: of
    these it is less sure than of the held-out ones that its threshold is set on, and lets them
    pass. Of images that it has not learned it is as sure as of held-out ones.
    """

    def trainings(self, task: TaskInfo) -> list[Training]:
        """Train both networks; the images are divided before."""
        if not self._known_as_new(task):
            return []

        def learned_by(half: int) -> Callable[[Batch], Tensor | None]:
            return lambda batch: batch.of_unlabeled[HALF] == half if len(batch.unlabeled) else None

        both = [self.training(task, name, learned_by(half)) for half, name in enumerate(OF_HALVES)]
        return [replace(training, before=self.divide) for training in both]

    def divide(self, passes: Passes) -> None:
        """Let every second unlabelled image be learned by the second network."""
        device = next(self.method.networks[OF_HALVES[0]].parameters()).device
        passes.note({HALF: torch.arange(passes.count("unlabeled"), device=device) % 2})

    def ask(self, images: Tensor, classes: int, network: str) -> tuple[Tensor, Scores]:
        """Return how unsure of all new classes each network is, a column each."""
        logits = self.method.networks[network](images)
        if not self.new:
            return logits, {}
        columns = [self._unsureness(images, name) for name in OF_HALVES]
        return logits, {GATE: torch.stack(columns, dim=1)}

    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Compare what the network says that has not learned the image."""
        if not self.new:
            return all_accepted(scores)
        other = (1 - scores[HALF]).unsqueeze(1)
        return super().accepts({**scores, GATE: scores[GATE].gather(1, other).squeeze(1)}, task)
