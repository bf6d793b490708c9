"""Operators have a plain torch implementation, which their kernels are compared with."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from torch.nn import functional

from distillmatch.fast import compiler, operators
from distillmatch.fast.convolution import convolve_1x1, convolve_1x1_backward
from distillmatch.fast.operators import OPERATORS, Draw, Operator, wrong_operators

CPU = torch.device("cpu")


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_an_operator_does_to_its_arguments_what_its_schema_says(operator: Operator) -> None:
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    for call in operator.examples(Draw(CPU)):
        opcheck(operator.overload, call, test_utils=checks)


class Kernels:
    """An operator that doubles a tensor in place and returns its square, by some kernel."""

    def __init__(self, kernel: Callable[[Tensor], Any]) -> None:
        self.name, self.kernel = "doubled_square", kernel

    def plain(self, tensor: Tensor) -> Tensor:
        made = tensor.square()
        tensor.mul_(2)
        return made

    def examples(self, draw: Draw) -> Any:
        yield (draw.numbers(100),)
        yield (draw.numbers(7),)


@pytest.mark.parametrize(
    ("kernel", "wrong"),
    [
        (lambda tensor: tensor.mul_(2).square() / 4, False),
        (lambda tensor: tensor.mul_(2).square() / 4.001, False),
        (lambda tensor: tensor.mul_(2).square() / 4.1, True),
        (lambda tensor: tensor.square(), True),
        (lambda tensor: tensor.mul_(2).square()[:-1] / 4, True),
        (lambda tensor: tensor.mul_(2).square().double() / 4, True),
        (lambda tensor: tensor.mul_(2).square() * torch.nan, True),
        (lambda tensor: NotImplemented, False),
    ],
)
def test_a_kernel_that_computes_something_else_is_found(
    kernel: Callable[[Tensor], Any], wrong: bool
) -> None:
    found: Any = Kernels(kernel)
    assert wrong_operators([found], CPU) == (["doubled_square"] if wrong else [])


def test_a_device_is_disabled_once_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(compiler, "disabled", {})
    compiler.disable(0, "no compiler")
    compiler.disable(0, "another reason")
    assert [str(one.message) for one in recwarn] == [
        "distillmatch's kernels are not used on this GPU, and runs are slower: no compiler"
    ]
    monkeypatch.setattr(operators, "disabled", compiler.disabled)
    assert not operators.is_usable(0)


@pytest.mark.parametrize("side", [8, 7])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_matrix_product_is_a_1x1_convolution_forward_and_backward(stride: int, side: int) -> None:
    generator = torch.Generator().manual_seed(1)
    maps = torch.randn(3, 5, side, side, generator=generator, dtype=torch.float64)
    maps = maps.to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(6, 5, 1, 1, generator=generator, dtype=torch.float64)
    expected = functional.conv2d(maps, weight, stride=stride)
    gradient = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    onto = torch.randn(maps.shape, generator=generator, dtype=torch.float64)
    onto = onto.to(memory_format=torch.channels_last)
    (of_maps,) = torch.autograd.grad(expected, maps, gradient)

    convolved = convolve_1x1(maps.detach(), weight, stride)
    torch.testing.assert_close(convolved, expected.detach())
    assert convolved.is_contiguous(memory_format=torch.channels_last)
    before = onto.clone()
    convolve_1x1_backward(gradient, weight, stride, onto)
    torch.testing.assert_close(onto, before + of_maps)
