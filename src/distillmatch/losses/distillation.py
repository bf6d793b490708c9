"""Soft distillation from a frozen model: per task, over all past classes, over the new classes."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from distillmatch.losses import kernels
from distillmatch.losses.fused import takes, takes_groups, takes_rows
from distillmatch.losses.reductions import masked_mean

TaskWeights = Literal["equal", "class-share"]


def per_task_distillation(
    teacher_logits: Tensor,
    student_logits: Tensor,
    past_task_sizes: Sequence[int],
    temperature: float,
    weights: TaskWeights = "class-share",
    mask: Tensor | None = None,
) -> Tensor:
    """Local distillation ℓ_dst (eq. 1).

    ℓ_dst = Σ_t a_t · mean_b KL( softmax(z'_b,t / T) ‖ softmax(z_b,t / T) )

    where z'_b,t and z_b,t are the teacher's and the student's logits of image b cut to the classes
    of past task t. `weights` names a_t: `equal` is 1 / (n - 1), the paper's; `class-share` is the
    task's share of the classes seen so far, the columns of the student's logits, as the authors'
    release has it: the new task's share is missing, and the weights add up to less than 1. There is
    no factor T². `past_task_sizes` holds the class count of each past task; without a past task the
    loss is 0.
    """
    if not past_task_sizes:
        return student_logits.new_zeros(())
    past = sum(past_task_sizes)
    if _by_kernel(teacher_logits[:, :past], student_logits, past_task_sizes, mask):
        equal = weights == "equal"
        groups = kernels.Groups(
            past_task_sizes,
            factor=1 / (len(past_task_sizes) if equal else student_logits.shape[1]),
            by_size=not equal,
            temperature=temperature,
        )
        return kernels.divergence(
            student_logits, groups, teacher=teacher_logits[:, :past], mask=mask
        )
    teacher = _by_task(teacher_logits[:, :past] / temperature, past_task_sizes)
    student = _by_task(student_logits[:, :past] / temperature, past_task_sizes)
    negative = _negative_divergence(teacher, student)
    shares = [size / student_logits.shape[1] for size in past_task_sizes]
    if weights == "equal":
        shares = [1 / len(past_task_sizes)] * len(past_task_sizes)
    if len(set(shares)) == 1:
        return _mean_over_images(negative, shares[0], mask)
    of_tasks = zip(shares, negative.unbind(dim=1), strict=True)
    return _mean_over_images(torch.stack([a * task for a, task in of_tasks], dim=1), 1.0, mask)


def past_distillation(
    teacher_logits: Tensor,
    student_logits: Tensor,
    past: int,
    temperature: float,
    *,
    squared: bool = True,
    mask: Tensor | None = None,
) -> Tensor:
    """Distil all past classes at once from θ_{n-1}.

    T² · mean_b KL( softmax(z'_b,past / T) ‖ softmax(z_b,past / T) ), without T² if not `squared`,
    where the past classes are the first `past` slots.
    """
    return _distillation(teacher_logits, student_logits, (0, past), temperature, squared, mask)


def new_task_distillation(
    teacher_logits: Tensor,
    student_logits: Tensor,
    past: int,
    seen: int,
    temperature: float,
    *,
    squared: bool = True,
    mask: Tensor | None = None,
) -> Tensor:
    """Distil the new task from a model C trained on it alone, both in the same class slots.

    T² · mean_b KL( softmax(c_b,new / T) ‖ softmax(z_b,new / T) ), without T² if not `squared`,
    where the new classes are the slots from `past` up to `seen`.
    """
    return _distillation(teacher_logits, student_logits, (past, seen), temperature, squared, mask)


def _distillation(
    teacher_logits: Tensor,
    student_logits: Tensor,
    slots: tuple[int, int],
    temperature: float,
    squared: bool,
    mask: Tensor | None,
) -> Tensor:
    """Distil the slots from the first given up to the second."""
    first, last = slots
    teacher = teacher_logits[:, first:last]
    factor = temperature**2 if squared else 1.0
    if _by_kernel(teacher, student_logits[:, first:], (last - first,), mask):
        groups = kernels.Groups((last - first,), first, factor, temperature=temperature)
        return kernels.divergence(student_logits, groups, teacher=teacher, mask=mask)
    student = student_logits[:, first:last]
    negative = _negative_divergence(teacher / temperature, student / temperature)
    return _mean_over_images(negative, factor, mask)


def _by_kernel(teacher: Tensor, student: Tensor, sizes: Sequence[int], mask: Tensor | None) -> bool:
    """Tell whether one kernel takes groups of so many columns; the teacher is cut to them."""
    return (
        takes(student, teacher)
        and takes_rows(student, mask)
        and teacher.shape[1] == sum(sizes) <= student.shape[1]
        and takes_groups(sizes)
    )


def _negative_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Return q_k · log(p_k / q_k), with q and p the softmax of teacher and student.

    Their sum over k is -KL(q ‖ p). The sign is left to be changed with the factor of the mean, so
    that neither takes a kernel of its own in the backward pass.
    """
    target = teacher.detach().log_softmax(dim=-1)
    return target.exp() * (student.log_softmax(dim=-1) - target)


def _mean_over_images(negative: Tensor, factor: float, mask: Tensor | None) -> Tensor:
    """Return -factor · mean_b of the sum over all else, 0 where there is no image."""
    if mask is None:
        return negative.sum() * (-factor / max(1, len(negative)))
    return -factor * masked_mean(negative.flatten(start_dim=1).sum(dim=1), mask)


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
