"""What the kernels of the losses compute, row by row; kernels.py says when and why.

Triton would compile a kernel anew for counts that are 1 or can be divided by 16: with every task
there are more classes, and none of it is worth a second.
"""

# What Triton compiles has no types to annotate.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl


@triton.jit
def _log_softmax(logits, known, axis: tl.constexpr):
    """Return log softmax over the known entries of an axis; what stands elsewhere is undefined."""
    largest = tl.max(tl.where(known, logits, float("-inf")), axis, keep_dims=True)
    shifted = logits - largest
    return shifted - tl.log(tl.sum(tl.where(known, tl.exp(shifted), 0.0), axis, keep_dims=True))


@triton.jit
def _confident_labels(logits, known, threshold):
    """Return the likeliest class of each row, and whether it is at least so likely.

    A row that is no number is class 0 and counts, as torch's comparisons have it.
    """
    largest = tl.max(tl.where(known, logits, float("-inf")), 1, keep_dims=True)
    powers = tl.where(known, tl.exp(logits - largest), 0.0)
    confidence = tl.div_rn(1.0, tl.sum(powers, 1))
    labels = tl.where(confidence >= 0, tl.argmax(powers, 1), 0)
    return labels, (confidence < threshold) == 0


@triton.jit(do_not_specialize=["rows", "columns", "stride", "weak_stride"])
def cross_entropy_kernel(
    logits,
    labels,
    weak,
    weights,
    mask,
    losses,
    gradient,
    rows,
    columns,
    stride,
    weak_stride,
    threshold,
    factor,
    passed_over: tl.constexpr,
    block_rows: tl.constexpr,
    width: tl.constexpr,
):
    """Write the sum of some rows' cross entropies, and the gradient of their logits.

    Labels are given, or are those that the weak logits are confident of.
    """
    column = tl.arange(0, width)[None, :]
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    inside = row < rows
    known = inside[:, None] & (column < columns)
    at = row.to(tl.int64)[:, None]
    given = tl.load(logits + at * stride + column, mask=known, other=0.0)
    log_probability = _log_softmax(given, known, 1)
    if weak is not None:
        seen = tl.load(weak + at * weak_stride + column, mask=known, other=0.0)
        label, counts = _confident_labels(seen, known, threshold)
        counts = counts & inside
    else:
        label = tl.load(labels + row, mask=inside, other=passed_over)
        counts = inside & (label != passed_over)
    if mask is not None:
        counts = counts & (tl.load(mask + row, mask=inside, other=0) != 0)
    valid = (label >= 0) & (label < columns)
    weight = tl.where(counts, 1.0, 0.0)
    if weights is not None:
        weight = tl.load(weights + label, mask=counts & valid, other=0.0)
    hit = column == label[:, None]
    loss = -weight * tl.sum(tl.where(hit & known, log_probability, 0.0), 1)
    loss = tl.where(valid, loss, float("nan"))  # torch stops the device at such a label
    loss = tl.where(counts, loss, 0.0)
    if gradient is not None:
        slope = tl.exp(log_probability) - tl.where(hit, 1.0, 0.0)
        slope = slope * (weight * factor)[:, None]
        tl.store(gradient + at * columns + column, slope, mask=known)
    tl.store(losses + tl.program_id(0), tl.sum(loss, 0) * factor)


@triton.jit
def _bounds(run_sizes, run_counts, groups: tl.constexpr):
    """Return the first column and the size of each group, given runs of groups of equal sizes."""
    group = tl.arange(0, groups)
    start = tl.zeros((groups,), tl.int32)
    size = tl.zeros((groups,), tl.int32)
    first = 0
    column = 0
    for run in tl.static_range(len(run_sizes)):
        later = group >= first
        start = tl.where(later, column + (group - first) * run_sizes[run], start)
        size = tl.where(later, run_sizes[run], size)
        first += run_counts[run]
        column += run_counts[run] * run_sizes[run]
    return start, tl.where(group < first, size, 0), column


@triton.jit
def _count(mask, rows):
    """Return how many entries of the mask are true, at least 1."""
    members = tl.zeros((1024,), tl.int32)
    for start in range(0, rows, 1024):
        row = start + tl.arange(0, 1024)
        members += tl.load(mask + row, mask=row < rows, other=0).to(tl.int32)
    return tl.maximum(tl.sum(members, 0), 1).to(tl.float32)


@triton.jit(do_not_specialize=["rows", "columns", "first", "student_stride", "teacher_stride"])
def divergence_kernel(
    student,
    teacher,
    target,
    mask,
    losses,
    gradient,
    rows,
    columns,
    first,
    student_stride,
    teacher_stride,
    run_sizes,
    run_counts,
    inverse_temperature,
    factor,
    by_size: tl.constexpr,
    mean: tl.constexpr,
    block_rows: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
    rest: tl.constexpr,
):
    """Write the sum of some rows' KL( q ‖ p ) over groups of columns, and the student's gradient.

    p is the student's softmax in a group. q is the teacher's, or the target, or is uniform.
    """
    start, size, end = _bounds(run_sizes, run_counts, groups)
    within = tl.arange(0, width)
    column = (start[:, None] + within[None, :])[None, :, :]
    member = (within[None, :] < size[:, None])[None, :, :]
    scale = tl.full((1, groups, 1), factor, tl.float32)
    if by_size:
        scale = scale * size.to(tl.float32)[None, :, None]
    if mean and mask is not None:
        scale = tl.div_rn(scale, tl.zeros((1, groups, 1), tl.float32) + _count(mask, rows))
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    inside = row < rows
    at = row.to(tl.int64)[:, None, None]
    known = inside[:, None, None] & member
    given = tl.load(student + at * student_stride + first + column, mask=known, other=0.0)
    log_p = _log_softmax(given * inverse_temperature, known, 2)
    if teacher is not None:
        taught = tl.load(teacher + at * teacher_stride + column, mask=known, other=0.0)
        log_q = _log_softmax(taught * inverse_temperature, known, 2)
        q = tl.exp(log_q)
        divergence = q * (log_q - log_p)
    elif target is not None:
        q = tl.load(target + at * teacher_stride + column, mask=known, other=0.0)
        divergence = tl.where(q == 0, 0.0, q * tl.log(q)) - q * log_p
    else:
        sizes = tl.maximum(size, 1).to(tl.float32)[None, :, None]
        q = tl.div_rn(tl.full((block_rows, groups, width), 1.0, tl.float32), sizes)
        divergence = q * (-tl.log(sizes) - log_p)
    scale_of_rows = scale + tl.zeros((block_rows, groups, 1), tl.float32)
    counts = known
    if mask is not None:
        chosen = (tl.load(mask + row, mask=inside, other=0) != 0)[:, None, None]
        scale_of_rows = tl.where(chosen, scale_of_rows, 0.0)
        counts = known & chosen
    divergence = tl.where(counts, divergence, 0.0) * scale
    if gradient is not None:
        mass = tl.sum(tl.where(known, q, 0.0), 2, keep_dims=True)
        slope = (tl.exp(log_p) * mass - q) * (scale_of_rows * inverse_temperature)
        tl.store(gradient + at * columns + first + column, slope, mask=known)
        if rest > 0:
            other = tl.arange(0, rest)[None, :]
            outside = (other < first) | ((other >= first + end) & (other < columns))
            to = gradient + row.to(tl.int64)[:, None] * columns + other
            tl.store(to, tl.zeros((block_rows, rest), tl.float32), inside[:, None] & outside)
    tl.store(losses + tl.program_id(0), tl.sum(tl.sum(tl.sum(divergence, 2), 1), 0))


@triton.jit(do_not_specialize=["labeled", "guessed"])
def join_kernel(
    labels, guesses, accepted, joined, count, labeled, guessed, passed_over: tl.constexpr
):
    """Write the labels, then the guesses that are accepted, and how many both are."""
    place = tl.arange(0, 1024)
    members = tl.zeros((1024,), tl.int64)
    for start in range(0, labeled, 1024):
        row = start + place
        tl.store(joined + row, tl.load(labels + row, mask=row < labeled), mask=row < labeled)
    for start in range(0, guessed, 1024):
        row = start + place
        chosen = tl.load(accepted + row, mask=row < guessed, other=0) != 0
        guess = tl.load(guesses + row, mask=row < guessed, other=passed_over)
        tl.store(joined + labeled + row, tl.where(chosen, guess, passed_over), mask=row < guessed)
        members += chosen.to(tl.int64)
    tl.store(count, tl.sum(members, 0) + labeled)


@triton.jit
def total_kernel(labels_sum, count, total, consistency, distillation, weight_c, weight_d):
    """Write labels_sum / count + weight_c · consistency + weight_d · distillation."""
    value = tl.div_rn(tl.load(labels_sum), tl.load(count).to(tl.float32))
    if consistency is not None:
        value += weight_c * tl.load(consistency)
    if distillation is not None:
        value += weight_d * tl.load(distillation)
    tl.store(total, value)
