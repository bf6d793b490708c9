"""The kernels of the losses against torch's formulation in float64, values and gradients.

On a CUDA device they run there. Elsewhere they are compiled for the host, where they are told to
take what lies there.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from on_host import KernelOnHost, built
from torch import Tensor

from distillmatch.losses import (
    confidence_calibration,
    consistency_loss,
    distillmatch_loss,
    fused,
    hard_distillation,
    kernels,
    new_task_distillation,
    past_distillation,
    per_task_distillation,
    soft_global_distillation,
    weighted_cross_entropy_sum,
    with_pseudo_labels,
)
from distillmatch.losses.distillation import TaskWeights

ON_CUDA = torch.cuda.is_available()
pytestmark = (
    pytest.mark.gpu
    if ON_CUDA
    else pytest.mark.skipif(
        shutil.which("g++") is None, reason="needs g++ to compile the kernels for the host"
    )
)

DEVICE = "cuda" if ON_CUDA else "cpu"
SHAPES = [(1, 1), (1, 8), (3, 5), (2, 300), (65, 100)]
SHAPES += [(192, 100), (513, 1000), (3, 5000)] if ON_CUDA else []
FEW = {"one program": 10**6, "many programs": 0}
"""How many rows, or groups of columns, are left to one program."""


@pytest.fixture(scope="module", name="on_host")
def kernels_on_host(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KernelOnHost]:
    constants = {"WARPS": kernels.WARPS, "RUNS": kernels.MOST_RUNS}
    folder, flags = tmp_path_factory.mktemp("losses"), ["-shared", "-fPIC"]
    library = built(folder, "losses", constants, sources=kernels.FOLDER, flags=flags)
    return {name: KernelOnHost(library, name) for name in kernels.NAMES}


@pytest.fixture(autouse=True)
def kernels_take_the_device(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if not ON_CUDA:
        on_host = request.getfixturevalue("on_host")
        monkeypatch.setattr(kernels, "_kernels", lambda device: on_host)
        monkeypatch.setattr(fused, "_on_current_device", lambda tensor: True)


@dataclass(frozen=True)
class Rows:
    """What the losses are taken of, in float64 on the CPU or in float32 on the device."""

    logits: Tensor
    teacher: Tensor
    target: Tensor
    labels: Tensor
    weights: Tensor
    mask: Tensor

    def on_device(self) -> "Rows":
        moved = {name: value.to(DEVICE) for name, value in vars(self).items()}
        floats = {name: v.float() for name, v in moved.items() if v.is_floating_point()}
        return Rows(**{**moved, **floats})


def drawn(rows: int, columns: int, seed: int = 0, masked: float = 0.4) -> Rows:
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        # Float32 holds them, so that both formulations are given the same.
        return 3 * torch.randn(rows, columns, generator=generator).double()

    labels = torch.randint(columns, (rows,), generator=generator)
    labels[torch.rand(rows, generator=generator) < 0.2] = -100
    return Rows(
        logits=normal(),
        teacher=normal(),
        target=normal().softmax(1).float().double(),
        labels=labels,
        weights=torch.rand(columns, generator=generator).double() * 5,
        mask=torch.rand(rows, generator=generator) >= masked,
    )


def sizes_of(columns: int, ragged: bool) -> list[int]:
    """Sizes of past tasks: all but the last column or so, in equal or unequal parts."""
    if columns < 4:
        return [1] * columns
    if not ragged:
        return [columns // 4] * 3
    return [columns // 2, 1, 1] + [columns // 8] * (columns >= 8)


def per_task(rows: Rows, *, ragged: bool, masked: bool = False, weights: str = "equal") -> Tensor:
    sizes = sizes_of(rows.logits.shape[1], ragged)
    mask = rows.mask if masked else None
    return per_task_distillation(rows.teacher, rows.logits, sizes, 2.0, weights, mask)  # type: ignore[arg-type]


def of_past(rows: Rows, *, masked: bool) -> Tensor:
    past = (rows.logits.shape[1] + 1) // 2
    return past_distillation(
        rows.teacher, rows.logits, past, 2.0, mask=rows.mask if masked else None
    )


def of_new(rows: Rows) -> Tensor:
    columns = rows.logits.shape[1]
    return new_task_distillation(
        rows.teacher, rows.logits, columns // 3, columns, 3.0, squared=False
    )


LOSSES: dict[str, Callable[[Rows], Tensor]] = {
    "cross entropy": lambda r: weighted_cross_entropy_sum(r.logits, r.labels),
    "weighted": lambda r: weighted_cross_entropy_sum(r.logits, r.labels, r.weights),
    "masked": lambda r: weighted_cross_entropy_sum(r.logits, r.labels, r.weights, r.mask),
    "hard": lambda r: hard_distillation(r.logits, r.labels, r.mask),
    "consistency": lambda r: consistency_loss(r.teacher, r.logits, 0.6),
    "per task": partial(per_task, ragged=False),
    "per task of unequal sizes": partial(per_task, ragged=True),
    "per task by share": partial(per_task, ragged=True, weights="class-share"),
    "per task by share, masked": partial(per_task, ragged=True, masked=True, weights="class-share"),
    "past": partial(of_past, masked=False),
    "past, masked": partial(of_past, masked=True),
    "new": of_new,
    "global": lambda r: soft_global_distillation(r.logits, r.target),
    "global, masked": lambda r: soft_global_distillation(r.logits, r.target, r.mask),
    "calibration": lambda r: confidence_calibration(r.logits),
    "calibration, masked": lambda r: confidence_calibration(r.logits, r.mask),
}
PADDED = [name for name in LOSSES if "unequal" in name or "share" in name]
loss_names = pytest.mark.parametrize("name", LOSSES)


def with_gradient(loss: Callable[[Rows], Tensor], rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the loss and the gradient of three times the loss."""
    logits = rows.logits.detach().requires_grad_()
    value = loss(replace(rows, logits=logits))
    (gradient,) = torch.autograd.grad(3 * value, logits)
    return value.detach(), gradient


def by_torch(loss: Callable[[Rows], Tensor], rows: Rows) -> tuple[Tensor, Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "_on_current_device", lambda tensor: False)
        return with_gradient(loss, rows)


def assert_agrees(loss: Callable[[Rows], Tensor], rows: Rows) -> None:
    """Check what the kernel makes of float32 against what torch makes of float64."""
    value, gradient = with_gradient(loss, rows.on_device())
    expected, expected_gradient = by_torch(loss, rows)
    assert value.dtype == gradient.dtype == torch.float32
    assert value.shape == () and gradient.is_contiguous()
    torch.testing.assert_close(value.cpu().double(), expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(
        gradient.cpu().double(), expected_gradient, rtol=1e-5, atol=1e-6, equal_nan=True
    )


@loss_names
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_kernel_gives_the_loss_and_its_gradient(name: str, shape: tuple[int, int]) -> None:
    assert_agrees(LOSSES[name], drawn(*shape, seed=sum(shape)))


@loss_names
@pytest.mark.parametrize("share", FEW)
def test_rows_are_added_up_by_one_program_or_many(
    name: str, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "FEW", FEW[share])
    assert_agrees(LOSSES[name], drawn(45, 19))


@loss_names
def test_a_kernel_is_what_is_tested(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = drawn(4, 8).on_device()
    monkeypatch.setattr(torch.Tensor, "log_softmax", None)
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", None)
    LOSSES[name](rows)


@loss_names
@pytest.mark.parametrize("masked", [0.0, 1.0])
def test_all_rows_or_none_may_count(name: str, masked: float) -> None:
    assert_agrees(LOSSES[name], drawn(6, 8, masked=masked))


@loss_names
def test_no_rows_give_what_torch_gives(name: str) -> None:
    rows = drawn(0, 8)
    assert_agrees(LOSSES[name], rows)


@loss_names
def test_the_same_rows_give_the_same_bits(name: str) -> None:
    rows = drawn(*((260, 130) if ON_CUDA else (20, 30))).on_device()
    value, gradient = with_gradient(LOSSES[name], rows)
    again, gradient_again = with_gradient(LOSSES[name], rows)
    assert torch.equal(value, again) and torch.equal(gradient, gradient_again)


@loss_names
@pytest.mark.parametrize("given", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["logits", "teacher", "whole row"])
def test_what_is_not_finite_comes_out_as_torch_has_it(name: str, given: float, where: str) -> None:
    rows = drawn(6, 8, seed=3, masked=0.0)
    rows.labels[:3] = torch.tensor([-100, 2, 5])
    rows.mask[4] = False
    if where == "whole row":
        rows.logits[0] = rows.logits[5] = given
    else:
        getattr(rows, where)[[0, 1, 4, 5], [2, 2, 1, 0]] = given
    if where == "whole row" and given == float("-inf") and name in PADDED:
        # Torch compares them with its padding, which is less unlikely.
        assert not with_gradient(LOSSES[name], rows.on_device())[0].isfinite()
        return
    assert_agrees(LOSSES[name], rows)


@loss_names
def test_rows_that_lie_apart_are_read_where_they_lie(name: str) -> None:
    rows = drawn(5, 8, seed=5)
    apart = {
        field: torch.nn.functional.pad(getattr(rows, field), (2, 3)).float().to(DEVICE)[:, 2:-3]
        for field in ("logits", "teacher", "target")
    }
    value, gradient = with_gradient(LOSSES[name], rows.on_device())
    of_apart, gradient_of_apart = with_gradient(LOSSES[name], replace(rows.on_device(), **apart))
    assert torch.equal(value, of_apart) and torch.equal(gradient, gradient_of_apart)


@loss_names
def test_without_a_gradient_the_loss_is_the_same(name: str) -> None:
    rows = drawn(5, 8).on_device()
    assert torch.equal(LOSSES[name](rows), with_gradient(LOSSES[name], rows)[0])


def test_a_label_that_is_no_class_gives_no_number() -> None:
    rows = drawn(3, 4).on_device()
    labels = torch.tensor([1, 4, -100], device=DEVICE)
    assert weighted_cross_entropy_sum(rows.logits, labels).isnan()
    assert weighted_cross_entropy_sum(rows.logits, labels, rows.weights).isnan()
    mask = torch.tensor([True, False, True], device=DEVICE)
    assert weighted_cross_entropy_sum(rows.logits, labels, mask=mask).isfinite()


def test_consistency_takes_the_first_of_equally_likely_classes() -> None:
    weak = torch.zeros(3, 70, dtype=torch.float64)
    weak[0, [7, 39, 50]] = weak[1, [40, 69]] = 5
    rows = replace(drawn(3, 70), teacher=weak)
    assert_agrees(lambda r: consistency_loss(r.teacher, r.logits, 0.01), rows)


@pytest.mark.parametrize("programs", [1, 33, 1300])
def test_what_many_programs_write_is_added_up(programs: int) -> None:
    losses = torch.arange(1.0, programs + 1, device=DEVICE)
    total = losses.new_empty(())
    kernels._launch("add_up", 1, losses, total, programs)
    assert total.item() == programs * (programs + 1) / 2


def test_a_target_need_not_add_up_to_one_and_may_hold_zeros() -> None:
    rows = drawn(4, 6)
    target = 2.5 * rows.target
    target[:, 2] = 0
    assert_agrees(LOSSES["global"], replace(rows, target=target))


@pytest.mark.parametrize("sizes", [[1, 2] * 20, [3, 0, 2], [0, 4, 4, 0, 0, 4, 1], [7] * 8])
@pytest.mark.parametrize("weights", ["equal", "class-share"])
def test_tasks_may_have_any_sizes(sizes: list[int], weights: TaskWeights) -> None:
    rows = drawn(3, sum(sizes) + 2)
    assert_agrees(
        lambda r: per_task_distillation(r.teacher, r.logits, sizes, 2.0, weights, r.mask), rows
    )


def test_a_task_of_another_size_too_many_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(kernels, "divergence", lambda *given, **named: asked.append(given))
    rows = drawn(2, 3 * kernels.MOST_RUNS).on_device()
    sizes = [1, 2] * (kernels.MOST_RUNS // 2)
    per_task_distillation(rows.teacher, rows.logits, [*sizes, 1], 2.0)
    assert not asked
    per_task_distillation(rows.teacher, rows.logits, sizes, 2.0)
    assert asked


def test_no_gradient_flows_to_weak_logits_or_teachers() -> None:
    rows = drawn(4, 8).on_device()
    teacher = rows.teacher.requires_grad_()
    logits = rows.logits.requires_grad_()
    for loss in ("consistency", "per task", "past"):
        LOSSES[loss](replace(rows, logits=logits, teacher=teacher)).backward()  # type: ignore[no-untyped-call]
    assert teacher.grad is None and logits.grad is not None


@pytest.mark.parametrize("labeled,guessed", [(1, 1), (64, 128), (1500, 2100)])
def test_pseudo_labels_follow_labels_and_are_counted(labeled: int, guessed: int) -> None:
    generator = torch.Generator().manual_seed(labeled)
    labels = torch.randint(9, (labeled,), generator=generator)
    guesses = torch.randint(9, (guessed,), generator=generator)
    accepted = torch.rand(guessed, generator=generator) < 0.5
    joined, count = with_pseudo_labels(*(part.to(DEVICE) for part in (labels, guesses, accepted)))
    expected = [
        *labels.tolist(),
        *(g if a else -100 for g, a in zip(guesses, accepted, strict=True)),
    ]
    assert joined.tolist() == [int(label) for label in expected]
    assert count.shape == () and int(count) == labeled + int(accepted.sum())


@pytest.mark.parametrize("parts", [(True, True), (True, False), (False, True), (False, False)])
def test_the_total_and_its_gradients(parts: tuple[bool, bool]) -> None:
    values = [7.25, 1.5, 0.3]
    losses = [torch.tensor(v, device=DEVICE, requires_grad=True) for v in values]
    count = torch.tensor(3, device=DEVICE)
    first, second = (loss if there else None for loss, there in zip(losses[1:], parts, strict=True))
    total = distillmatch_loss(losses[0], count, first, second, consistency_weight=2.0)
    total.backward()  # type: ignore[no-untyped-call]
    expected = 7.25 / 3 + 2 * 1.5 * parts[0] + 0.3 * parts[1]
    assert total.item() == pytest.approx(expected, rel=1e-6)
    assert losses[0].grad is not None and losses[0].grad.item() == pytest.approx(1 / 3)
    for loss, there, weight in zip(losses[1:], parts, (2.0, 1.0), strict=True):
        assert (loss.grad is not None) == there
        assert loss.grad is None or loss.grad.item() == weight
