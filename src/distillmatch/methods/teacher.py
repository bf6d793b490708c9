"""Networks trained on a new task alone: the teacher of DR and GD, and how any such one learns."""

import torch
from torch import Tensor, nn

from distillmatch.config.run import TeacherStart
from distillmatch.losses import confidence_calibration, weighted_cross_entropy_sum
from distillmatch.methods.forwards import first_rows, forward_views
from distillmatch.methods.method import Batch, Method, TaskInfo, Training
from distillmatch.methods.parts import baseline_rate
from distillmatch.methods.schedule import main_schedule

TEACHER = "teacher"


def teacher_training(method: Method, task: TaskInfo, *, calibrated: bool) -> Training:
    """Train `C` by cross entropy over the new classes, anew in every task.

    It starts from new weights, or as the last task's classifier where that is configured.
    Calibrated, it is also taught to be uncertain about all other images: the coreset's and the
    unlabelled ones. Otherwise it meets the latter only where it is to be normalized with them.
    """
    network = start_network(method, task, TEACHER, method.config.teacher_start)
    return Training(
        name="teacher",
        network=network,
        loss=lambda batch: new_task_loss(network, batch, task, calibrated=calibrated),
        schedule=main_schedule(method.config, baseline_rate(method.config)),
        labeled="labeled" if calibrated else "new",
        unlabeled=calibrated or method.config.new_task_statistics == "together",
    )


def start_network(method: Method, task: TaskInfo, name: str, start: TeacherStart) -> nn.Module:
    """Give a network that is trained anew in every task its first weights: new ones, or θₙ₋₁'s."""
    network = method.start_afresh(name, task)
    # A run that is continued inside a task has no past model yet, and gets the network back later.
    if start == "past" and "past" in method.networks:
        network.load_state_dict(method.networks["past"].state_dict())
    return network


def new_task_loss(
    network: nn.Module,
    batch: Batch,
    task: TaskInfo,
    *,
    calibrated: bool,
    unsure_of: Tensor | None = None,
) -> Tensor:
    """Return the cross entropy over the new classes, and how sure it is of others if calibrated.

    `unsure_of` marks the unlabelled images that are learned from; without it all of them are.
    """
    new = batch.labels >= task.past
    slots = batch.labels - task.past
    logits = forward_views(network, batch, task.seen).weak[:, task.past :]
    total = weighted_cross_entropy_sum(first_rows(logits, len(slots)), slots, mask=new)
    supervised = total / new.sum().clamp(min=1)
    if not calibrated:
        return supervised
    unlabeled = new.new_ones(len(batch.unlabeled)) if unsure_of is None else unsure_of
    others = torch.cat([~new, unlabeled])
    return supervised + confidence_calibration(logits, others)
