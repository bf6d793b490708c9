"""1×1 convolutions as matrix products, beside torch's own convolution."""

import pytest
import torch
from torch.nn import functional

from distillmatch.fast import pointwise


@pytest.mark.parametrize("side", [8, 7])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_product_of_matrices_is_a_convolution_and_its_way_back(stride: int, side: int) -> None:
    generator = torch.Generator().manual_seed(1)
    maps = torch.randn(3, 5, side, side, generator=generator, dtype=torch.float64)
    maps = maps.to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(6, 5, 1, 1, generator=generator, dtype=torch.float64)
    expected = functional.conv2d(maps, weight, stride=stride)
    given = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    onto = torch.randn(maps.shape, generator=generator, dtype=torch.float64)
    onto = onto.to(memory_format=torch.channels_last)
    (of_maps,) = torch.autograd.grad(expected, maps, given)

    convolved = pointwise.convolve(maps.detach(), weight, stride)
    torch.testing.assert_close(convolved, expected.detach())
    assert convolved.is_contiguous(memory_format=torch.channels_last)
    before = onto.clone()
    pointwise.take_back(given, weight, stride, onto)
    torch.testing.assert_close(onto, before + of_maps)
