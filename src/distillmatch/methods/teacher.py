"""The new task's teacher of DR and GD: a network that is trained on the new task alone."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from distillmatch.losses import confidence_calibration, weighted_cross_entropy_sum
from distillmatch.methods.forward import Batch, joint_logits
from distillmatch.methods.method import Method, TaskInfo, Training
from distillmatch.methods.parts import Baseline
from distillmatch.methods.schedule import main_schedule

TEACHER = "teacher"


class TwoTeachers(NamedTuple):
    """Logits of the past classifier and of the new task's teacher.

    There is no teacher where a task only brings more images of known classes. `target` is GD's Q
    for unlabeled images.
    """

    past: Tensor
    new: Tensor | None = None
    target: Tensor | None = None


class Taught(Baseline):
    """A baseline with a teacher of the new task beside the past classifier."""

    def teacher_training(self, task: TaskInfo, *, calibrated: bool) -> Training:
        """Return the teacher's training, anew in every task.

        Calibrated, it also learns to be uncertain about all other images: stored and unlabeled
        ones. Otherwise unlabeled images take part in the batch statistics alone.
        """
        from_past = self.recipe.teacher_start == "past"
        return Training(
            name=TEACHER,
            network=start_network(self, task, TEACHER, from_past=from_past),
            loss=self.calibrated_teacher_loss if calibrated else self.teacher_loss,
            schedule=main_schedule(self.config, self.rate),
            labeled="labeled" if calibrated else "new",
        )

    def teacher_loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        """Return the teacher's cross entropy over the new classes."""
        return new_task_loss(self.networks[TEACHER], batch, task)

    def calibrated_teacher_loss(self, batch: Batch, task: TaskInfo) -> Tensor:
        """Return it with the confidence calibration on all other images."""
        return new_task_loss(self.networks[TEACHER], batch, task, calibrated=True)

    def teacher_outputs(self, images: Tensor, task: TaskInfo) -> TwoTeachers:
        """Return the logits of the past classifier and of the teacher."""
        new = self.networks[TEACHER](images) if task.new else None
        return TwoTeachers(self.networks["past"](images), new)


def teacher_logits(batch: Batch) -> Tensor:
    """Return the teacher's logits of labeled and then of unlabeled images."""
    return torch.cat([batch.labeled_outputs.new, batch.unlabeled_outputs.new])


def start_network(method: Method, task: TaskInfo, name: str, *, from_past: bool) -> nn.Module:
    """Give a network that is trained anew in every task new weights, or the past classifier's."""
    network = method.start_afresh(name, task)
    # A run that is resumed inside a task has no past classifier yet; its weights are restored.
    if from_past and "past" in method.networks:
        network.load_state_dict(method.networks["past"].state_dict())
    return network


def new_task_loss(
    network: nn.Module, batch: Batch, task: TaskInfo, *, calibrated: bool = False
) -> Tensor:
    """Return the cross entropy over the new classes; calibrated, plus KL(uniform ‖ p) on the rest.

    The rest are stored and unlabeled images.
    """
    new = batch.labels >= task.past
    logits = joint_logits(network, batch, task.seen)
    labeled = logits.labeled[:, task.past :]
    total = weighted_cross_entropy_sum(labeled, batch.labels - task.past, mask=new)
    supervised = total / new.sum().clamp(min=1)
    if not calibrated:
        return supervised
    others = torch.cat([~new, new.new_ones(len(batch.unlabeled))])
    return supervised + confidence_calibration(logits.weak[:, task.past :], others)
