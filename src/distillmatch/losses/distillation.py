"""Soft distillation from a frozen model: per task, over all past classes, over the new classes."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from distillmatch.config.run import TaskWeights
from distillmatch.losses.reductions import masked_mean


def per_task_distillation(
    teacher_logits: Tensor,
    student_logits: Tensor,
    past_task_sizes: Sequence[int],
    temperature: float,
    weights: TaskWeights = "equal",
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
    teacher = _by_task(teacher_logits.detach()[:, :past] / temperature, past_task_sizes)
    student = _by_task(student_logits[:, :past] / temperature, past_task_sizes)
    divergences = _divergence(teacher, student)
    if weights == "equal":
        return masked_mean(divergences.mean(dim=1), mask)
    shares = [size / student_logits.shape[1] for size in past_task_sizes]
    of_tasks = zip(shares, divergences.unbind(dim=1), strict=True)
    return masked_mean(torch.stack([share * of_task for share, of_task in of_tasks]).sum(0), mask)


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
    return _distillation(
        teacher_logits[:, :past], student_logits[:, :past], temperature, squared, mask
    )


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
    return _distillation(
        teacher_logits[:, past:seen], student_logits[:, past:seen], temperature, squared, mask
    )


def _distillation(
    teacher: Tensor, student: Tensor, temperature: float, squared: bool, mask: Tensor | None
) -> Tensor:
    divergence = _divergence(teacher.detach() / temperature, student / temperature)
    factor = temperature**2 if squared else 1.0
    return factor * masked_mean(divergence, mask)


def _divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Return KL(softmax(teacher) ‖ softmax(student)) along the last dimension."""
    return functional.kl_div(
        student.log_softmax(dim=-1),
        teacher.log_softmax(dim=-1),
        reduction="none",
        log_target=True,
    ).sum(dim=-1)


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
