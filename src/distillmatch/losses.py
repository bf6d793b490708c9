"""Losses, weights and scores: one pure function for each equation.

They take batches of fixed shape, with a mask where only some rows count, and never ask the device
for a number, so a step made of them can be captured as a graph. Logits are in float32 (or float64);
their columns are class slots in the order the classes are learned, so the classes of past tasks are
the first `past` columns and all classes seen so far the first `seen`. What a frozen model gives is
a target: no gradient flows to it.
"""

from collections.abc import Sequence
from math import ceil, log
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from distillmatch.errors import ConfigError

PASSED_OVER = -100
"""The label of a row that does not count: torch's cross entropy ignores it."""
EpsilonRule = Literal["highest", "lowest-halved"]


def weighted_cross_entropy_sum(
    logits: Tensor, labels: Tensor, class_weights: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Cross entropy weighted by class and summed: ℓ_s (eq. 6), and ℓ_pl with a mask (eq. 7).

    Σ_b 1(mask_b) · w(y_b) · CE(y_b, softmax(z_b))

    `logits` are cut to the seen classes. Without `class_weights` every class weighs 1. The label of
    a row outside the mask may be any number.
    """
    weights = None if class_weights is None else class_weights.to(logits.dtype)
    if mask is not None:
        labels = torch.where(mask, labels, PASSED_OVER)
    return functional.cross_entropy(
        logits, labels, weights, ignore_index=PASSED_OVER, reduction="sum"
    )


def with_pseudo_labels(
    labels: Tensor, pseudo_labels: Tensor, accepted: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the labels and then the pseudo-labels, for one sum over both, and B + B_pl.

    So eqs. 6 and 7 are one sum (`weighted_cross_entropy_sum`; eq. 7 is its part that has
    pseudo-labels). One that is not accepted is ignored and not counted.
    """
    both = torch.cat([labels, torch.where(accepted, pseudo_labels, PASSED_OVER)])
    return both, len(labels) + accepted.sum()


def class_weights(
    label_counts: Tensor, pseudo_label_counts: Tensor | None = None, cap: float = 10.0
) -> Tensor:
    """Return the class weights w(k), inverse class frequencies (eq. 3).

    w(k) = min( cap, (1/K) · Σ_j c_j / c_k )

    c_k is 1 plus the count of the labels k and of the accepted pseudo-labels k. K is the number of
    classes counted, those seen so far. The total is that of the smoothed counts, so before the cap
    the mean weight over images so counted is exactly 1.
    """
    counts = label_counts if pseudo_label_counts is None else label_counts + pseudo_label_counts
    if not counts.is_floating_point():
        counts = counts.to(torch.get_default_dtype())
    counts = counts + 1
    return (counts.mean() / counts).clamp(max=cap)


def pseudo_labels(teacher_logits: Tensor, past: int) -> Tensor:
    """Return the hard labels q̂_b = argmax θ_{n-1}(α(u_b)) over the past classes."""
    return teacher_logits.detach()[:, :past].argmax(dim=1)


def consistency_loss(
    weak_logits: Tensor,
    strong_logits: Tensor,
    threshold: float,
    classes: Sequence[int] | None = None,
) -> Tensor:
    """Consistency of strong with weak views of unlabeled images, ℓ_ul (eq. 4).

    (1/μB) Σ_b 1(max q_b ≥ τ_FM) · CE(argmax q_b, softmax(strong_b)),  q_b = softmax(weak_b)

    The mean is over the whole batch, confident or not; no gradient flows to the weak views. With
    `classes`, q_b is over these alone.
    """
    if len(weak_logits) != len(strong_logits):
        raise ConfigError(
            f"consistency_loss was given {len(weak_logits)} weak and {len(strong_logits)} strong "
            "views of the same images: a method has these with strong_views = True"
        )
    weak = weak_logits.detach()
    slots = None if classes is None else _slots(classes, weak.device)
    confidence, labels = (weak if slots is None else weak[:, slots]).softmax(dim=1).max(dim=1)
    labels = labels if slots is None else slots[labels]
    labels.masked_fill_(confidence < threshold, PASSED_OVER)
    return weighted_cross_entropy_sum(strong_logits, labels) / max(1, len(strong_logits))


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
    teacher_logits: Tensor, student_logits: Tensor, past: int, temperature: float
) -> Tensor:
    """Distil all past classes at once from θ_{n-1}.

    T² · mean_b KL( softmax(z'_b,past / T) ‖ softmax(z_b,past / T) ),
    where the past classes are the first `past` slots.
    """
    return _distillation(teacher_logits[:, :past], student_logits[:, :past], temperature)


def new_task_distillation(
    teacher_logits: Tensor, student_logits: Tensor, past: int, seen: int, temperature: float
) -> Tensor:
    """Distil the new task from a model C trained on it alone, both in the same class slots.

    T² · mean_b KL( softmax(c_b,new / T) ‖ softmax(z_b,new / T) ),
    where the new classes are the slots from `past` up to `seen`.
    """
    new = slice(past, seen)
    return _distillation(teacher_logits[:, new], student_logits[:, new], temperature)


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


def _distillation(teacher_logits: Tensor, student_logits: Tensor, temperature: float) -> Tensor:
    negative = _negative_divergence(teacher_logits / temperature, student_logits / temperature)
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


def _slots(classes: Sequence[int], device: torch.device) -> Tensor:
    """Return class numbers as a tensor made on the device, so that a step can be captured."""
    if isinstance(classes, range):
        return torch.arange(classes.start, classes.stop, device=device)
    return torch.cat([torch.arange(c, c + 1, device=device) for c in classes])


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


def soft_nearest_neighbors(
    queries: Tensor,
    supports: Tensor,
    labels: Tensor,
    classes: Sequence[int],
    temperature: float,
    smoothing: float = 0.0,
) -> Tensor:
    """Return the probabilities of some classes by the labeled images nearest in feature space.

    SNN(q) = Σ_s softmax_s( cos(q, s) / τ ) · y_s, over the supports s of these classes,

    with y_s the label of s, smoothed: 1 - ε + ε / K for its class and ε / K for the other K - 1.
    Supports of other classes do not count; of these classes there must be one at least.
    """
    wide = torch.promote_types(queries.dtype, torch.float32)
    with torch.autocast(queries.device.type, enabled=False):  # τ magnifies what is rounded
        queries, supports = (functional.normalize(rows.to(wide)) for rows in (queries, supports))
        is_of = labels.unsqueeze(1) == _slots(classes, labels.device)
        cosines = (queries @ supports.T).masked_fill(~is_of.any(dim=1), -torch.inf)
        targets = is_of.to(wide) * (1 - smoothing) + smoothing / len(classes)
        return (cosines / temperature).softmax(dim=1) @ targets


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """Return ρ(p)_k = p_k^(1/T) / Σ_j p_j^(1/T)."""
    powers = probabilities.pow(1 / temperature)
    return powers / powers.sum(dim=1, keepdim=True)


def soft_cross_entropy(targets: Tensor, probabilities: Tensor) -> Tensor:
    """Return - mean_b Σ_k t_b,k log p_b,k, for targets that are probabilities themselves.

    No gradient flows to the targets. Each p_b,k must be more than 0, as smoothed labels make it.
    """
    return -(targets.detach() * probabilities.log()).sum() / max(1, len(probabilities))


def distance_from_uniform(probabilities: Tensor) -> Tensor:
    """Return log K - H(p̄), the divergence of the mean prediction p̄ over a batch from uniform.

    To minimize it is to maximize the entropy of the mean prediction.
    """
    mean = probabilities.mean(dim=0)
    return log(probabilities.shape[1]) + (mean * mean.log()).sum()


def max_similarity(similarities: Tensor, seen: int) -> Tensor:
    """Return the detector's score S(x) = max_k h_k(x) over the seen classes."""
    return similarities[:, :seen].amax(dim=1)


def softmax_confidence(logits: Tensor, seen: int) -> Tensor:
    """Return the largest softmax probability over the seen classes, the score of a classifier."""
    return logits[:, :seen].softmax(dim=1).amax(dim=1)


def perturb(inputs: Tensor, score_gradient: Tensor, epsilon: Tensor | float) -> Tensor:
    """Return x + ε · sign(∂S/∂x), the input moved to where its score is higher."""
    return inputs + epsilon * score_gradient.sign()


def choose_epsilon(
    epsilons: Sequence[float], mean_scores: Sequence[float], rule: EpsilonRule = "highest"
) -> float:
    """Return the ε to use, given the mean score of the held-out images at each ε of a grid.

    `highest` takes the ε with the highest mean score, as DeConf does; `lowest-halved` takes half of
    the one with the lowest, as the authors' release does. Of equals the first is taken.
    """
    by_score = range(len(epsilons))
    if rule == "highest":
        return epsilons[max(by_score, key=mean_scores.__getitem__)]
    return epsilons[min(by_score, key=mean_scores.__getitem__)] / 2


def threshold_at_tpr(scores: Tensor, tpr: float) -> Tensor:
    """Return τ_OoD, the score that the share `tpr` of the held-out images reach.

    It is the ⌈tpr · count⌉-th highest score: the highest threshold that at least that share reach.
    """
    if not 0 < tpr <= 1:
        raise ConfigError(f"the true-positive rate must be more than 0 and at most 1, not {tpr}")
    count = scores.numel()
    if count == 0:
        raise ConfigError("the detector has no held-out images to set its threshold on")
    # 0.07 · 100 is a little more than 7 in floating point.
    rank = max(1, ceil(tpr * count - 1e-9 * count))
    return scores.detach().flatten().sort(descending=True).values[rank - 1]
