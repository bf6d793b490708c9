"""The teacher of a new task: a network trained on that task alone, for DR and GD."""

import torch
from torch import Tensor

from distillmatch.losses import confidence_calibration, weighted_cross_entropy_sum
from distillmatch.methods.method import Batch, Method, TaskInfo, Training
from distillmatch.methods.parts import baseline_rate, first_rows, forward_weak
from distillmatch.methods.schedule import main_schedule

TEACHER = "teacher"


def teacher_training(method: Method, task: TaskInfo, *, calibrated: bool) -> Training:
    """Train `C` by cross entropy over the new classes, anew in every task.

    It starts from new weights, or as the last task's classifier where that is configured.
    Calibrated, it is also taught to be uncertain about all other images: the coreset's and the
    unlabelled ones. Otherwise it meets the latter only where it is to be normalized with them.
    """
    schedule = main_schedule(method.config, baseline_rate(method.config))
    network = method.start_afresh(TEACHER, task)
    # A run that is continued inside a task has no past model yet, and gets its teacher back later.
    if method.config.teacher_start == "past" and "past" in method.networks:
        network.load_state_dict(method.networks["past"].state_dict())

    def loss(batch: Batch) -> Tensor:
        new = batch.labels >= task.past
        slots = batch.labels - task.past
        logits = forward_weak(network, batch, task.seen)[:, task.past :]
        total = weighted_cross_entropy_sum(first_rows(logits, len(slots)), slots, mask=new)
        supervised = total / new.sum().clamp(min=1)
        if not calibrated:
            return supervised
        others = torch.cat([~new, new.new_ones(len(batch.unlabeled))])
        return supervised + confidence_calibration(logits, others)

    return Training(
        name="teacher",
        network=network,
        loss=loss,
        schedule=schedule,
        labeled="labeled" if calibrated else "new",
        unlabeled=calibrated or method.config.new_task_statistics == "together",
    )
