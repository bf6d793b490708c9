"""Soft distillation from frozen models: per task, over past or new classes, or from two at once.

The last is global distillation (Lee et al., 2019): two teachers become one target.
"""

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor
from torch.nn import functional


def per_task_distillation(
    teacher_logits: Tensor,
    student_logits: Tensor,
    past_task_sizes: Sequence[int],
    temperature: float,
) -> Tensor:
    """Local distillation ℓ_dst (eq. 1).

    ℓ_dst = Σ_t a_t · mean_b KL( softmax(z'_b,t / T) ‖ softmax(z_b,t / T) )

    where z'_b,t and z_b,t are the teacher's and the student's logits of image b, cut to the classes
    of past task t. a_t is the task's share of the classes seen so far, the columns of the student's
    logits: the new task's share is missing, so the weights add up to less than 1. There is no
    factor T². `past_task_sizes` holds the class count of each past task; without one the loss is 0.
    """
    if not past_task_sizes:
        return student_logits.new_zeros(())
    past = sum(past_task_sizes)
    teacher = _by_task(teacher_logits[:, :past] / temperature, past_task_sizes)
    student = _by_task(student_logits[:, :past] / temperature, past_task_sizes)
    negative = _negative_divergence(teacher, student)
    shares = [size / student_logits.shape[1] for size in past_task_sizes]
    if len(set(shares)) == 1:
        return _mean_over_images(negative, shares[0])
    of_tasks = zip(shares, negative.unbind(dim=1), strict=True)
    return _mean_over_images(torch.stack([a * task for a, task in of_tasks], dim=1), 1.0)


def past_distillation(
    teacher_logits: Tensor,
    student_logits: Tensor,
    past: int,
    temperature: float,
) -> Tensor:
    """Distil all past classes at once from θ_{n-1}.

    T² · mean_b KL( softmax(z'_b,past / T) ‖ softmax(z_b,past / T) ),
    where the past classes are the first `past` slots.
    """
    return _distillation(teacher_logits, student_logits, (0, past), temperature)


def new_task_distillation(
    teacher_logits: Tensor,
    student_logits: Tensor,
    past: int,
    seen: int,
    temperature: float,
) -> Tensor:
    """Distil the new task from a model C trained on it alone, both in the same class slots.

    T² · mean_b KL( softmax(c_b,new / T) ‖ softmax(z_b,new / T) ),
    where the new classes are the slots from `past` up to `seen`.
    """
    return _distillation(teacher_logits, student_logits, (past, seen), temperature)


def ensemble_target(past_probabilities: Tensor, new_probabilities: Tensor) -> Tensor:
    """Return the ensemble Q over the seen classes, past ones first.

    With p the past model's softmax over the past classes, p_max its largest entry, c the softmax
    over the m new classes, s = past + m, and e = (1 - p_max) · m / (s - 1):

    Q = p_max where p is largest; p_k · (s - m - 1) / (s - 1) for the other past classes;
    e · c_k for the new classes.

    Each row sums to one.
    """
    past, new = past_probabilities.shape[1], new_probabilities.shape[1]
    others = past + new - 1
    largest, where = past_probabilities.max(dim=1, keepdim=True)
    past_part = (past_probabilities * ((past - 1) / others)).scatter(1, where, largest)
    new_part = new_probabilities * ((1 - largest) * (new / others))
    return torch.cat([past_part, new_part], dim=1).detach()


def soft_global_distillation(logits: Tensor, target: Tensor) -> Tensor:
    """Return Σ_b KL( Q_b ‖ softmax(z_b) ) at temperature 1, a sum over images.

    `logits` are cut to the seen classes, the columns of `target`.
    """
    return functional.kl_div(logits.log_softmax(dim=1), target.detach(), reduction="sum")


def confidence_calibration(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return how far the new task's model is from knowing nothing about other images.

    mean_b ( - (1/m) Σ_k log p_b,k - log m ), the divergence KL(uniform ‖ p_b), with p_b the softmax
    of `logits`, which are cut to the m new classes. The mean is over the images of the mask.
    """
    rows = -log(logits.shape[1]) - logits.log_softmax(dim=1).mean(dim=1)
    if mask is None:
        return rows.mean()
    return torch.where(mask, rows, 0).sum() / mask.sum().clamp(min=1)


def _distillation(
    teacher_logits: Tensor,
    student_logits: Tensor,
    slots: tuple[int, int],
    temperature: float,
) -> Tensor:
    """Distil the slots from the first given up to the second."""
    first, last = slots
    teacher = teacher_logits[:, first:last]
    student = student_logits[:, first:last]
    negative = _negative_divergence(teacher / temperature, student / temperature)
    return _mean_over_images(negative, temperature**2)


def _negative_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Return q_k · log(p_k / q_k), with q and p the softmax of teacher and student.

    Their sum over k is -KL(q ‖ p). The sign is left to be changed with the factor of the mean, so
    that neither costs an operation of its own in the backward pass.
    """
    target = teacher.detach().log_softmax(dim=-1)
    return target.exp() * (student.log_softmax(dim=-1) - target)


def _mean_over_images(negative: Tensor, factor: float) -> Tensor:
    """Return -factor · mean_b of the sum over all else, 0 where there is no image."""
    return negative.sum() * (-factor / max(1, len(negative)))


def _by_task(logits: Tensor, task_sizes: Sequence[int]) -> Tensor:
    """Return the logits as (batch, task, class), smaller tasks padded with impossible classes.

    The padding is finite, for the difference of two infinities is not a number; its probability is
    0 all the same.
    """
    widest = max(task_sizes)
    if min(task_sizes) == widest:
        return logits.reshape(len(logits), len(task_sizes), widest)
    impossible = torch.finfo(logits.dtype).min / 2
    parts = [
        functional.pad(part, (0, widest - part.shape[1]), value=impossible)
        for part in torch.split(logits, list(task_sizes), dim=1)
    ]
    return torch.stack(parts, dim=1)
