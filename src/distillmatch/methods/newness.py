"""The gate that learns what is new in a task: all that does not look like it is accepted."""

from torch import Tensor

from distillmatch.losses import softmax_confidence
from distillmatch.methods.detector import held_out_images
from distillmatch.methods.gate import GATE, ThresholdGate, all_accepted
from distillmatch.methods.method import Method, Passes, Scores, TaskInfo, Training
from distillmatch.methods.parts import HIGH_RATE
from distillmatch.methods.schedule import detector_schedule
from distillmatch.methods.teacher import new_task_loss, start_network

NEWNESS = "newness"
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
        if not self._known_as_new(task):
            return []
        config = self.method.config
        network = start_network(self.method, task, NEWNESS, "past")
        return [
            Training(
                name=NEWNESS,
                network=network,
                loss=lambda batch: new_task_loss(network, batch, task, calibrated=True),
                schedule=detector_schedule(config, HIGH_RATE),
                labeled="first-half",
                clip=config.clip,
            )
        ]

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
        of_new = self.method.networks[NEWNESS](images)[:, self.new.start : self.new.stop]
        return logits, {GATE: -softmax_confidence(of_new, len(self.new))}

    def accepts(self, scores: Scores, task: TaskInfo) -> Tensor:
        """Compare with the threshold, where there is something to compare."""
        return super().accepts(scores, task) if self.new else all_accepted(scores)

    def _known_as_new(self, task: TaskInfo) -> range:
        """Return the classes that images are rejected as in a task: the new ones, if several."""
        return range(task.past, task.seen) if task.past and task.new > 1 else range(0)
