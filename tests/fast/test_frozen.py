"""A frozen network's way forward and back, beside autograd's through its layers."""

from collections.abc import Sequence

import pytest
import torch
from frozen_networks import frozen_backbone
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input

from distillmatch.concurrency import shared_device
from distillmatch.fast import sharing
from distillmatch.fast.frozen import Layer, Walk, takes
from distillmatch.fast.running_statistics import Activated, Coefficients
from distillmatch.networks import BatchNorm


class ByTorch:
    """The operations in whatever precision the network has. Signs are of the shape of the maps."""

    def weight(self, convolution: nn.Conv2d) -> Tensor:
        return convolution.weight

    def coefficients(self, norms: Sequence[BatchNorm]) -> Sequence[Coefficients]:
        made = []
        for norm in norms:
            scale = norm.weight / (norm.running_var + norm.epsilon).sqrt()
            shift = norm.bias - norm.running_mean * scale
            made.append(Coefficients(scale[:, None, None], shift[:, None, None]))
        return made

    def activate(
        self,
        maps: Tensor,
        layer: Layer,
        by: Coefficients,
        shortcut: Tensor | None = None,
        *,
        keeps_total: bool = False,
        keeps_signs: bool = False,
    ) -> Activated:
        total = functional.conv2d(maps, layer.weight, stride=layer.stride, padding=1)
        if shortcut is not None:
            assert shortcut.shape == total.shape
            total = total + shortcut
        activated = functional.relu(total * by.scales + by.shifts)
        signs = activated > 0
        return Activated(activated, total if keeps_total else None, signs if keeps_signs else None)

    def convolve(self, maps: Tensor, layer: Layer) -> Tensor:
        return functional.conv2d(maps, *layer[:1], stride=layer.stride)

    def take_back_mean(self, given: Tensor, by: Coefficients, signs: Tensor) -> Tensor:
        spread = given[:, :, None, None] / (signs.shape[2] * signs.shape[3])
        return spread * signs * by.scales

    def take_back(
        self,
        given: Tensor,
        layer: Layer,
        by: Coefficients,
        signs: Tensor,
        *,
        of_total: Tensor | None = None,
        shortcut: tuple[Tensor, Layer] | None = None,
    ) -> Tensor:
        of_input = taken_back(given, layer, signs.shape)
        if shortcut is not None:
            of_input = of_input + taken_back(*shortcut, signs.shape)
        result = of_input * signs * by.scales
        return result if of_total is None else result + of_total

    def take_back_to_images(self, given: Tensor, layer: Layer) -> Tensor:
        return taken_back(given, layer, (len(given), 3, *given.shape[2:]))


def taken_back(given: Tensor, layer: Layer, shape: Sequence[int]) -> Tensor:
    padding = layer.weight.shape[2] // 2
    taken: Tensor = conv2d_input(  # type: ignore[no-untyped-call]
        list(shape), layer.weight, given, stride=layer.stride, padding=padding
    )
    return taken


@pytest.mark.parametrize(
    ("name", "side"), [("wrn-10-1", 8), ("wrn-16-1", 7), ("wrn-10-2", 12), ("wrn-22-2", 9)]
)
def test_the_walk_gives_the_networks_features_and_their_gradient_of_the_images(
    name: str, side: int
) -> None:
    backbone = frozen_backbone(name).double()
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(3, 3, side, side, generator=generator, dtype=torch.float64)
    images.requires_grad_()
    features = backbone(images)
    weights = torch.randn(features.shape, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((features * weights).sum(), images)

    walk = Walk(backbone, ByTorch())
    with torch.no_grad():
        ours, signs = walk.forward(images, keeps_signs=True)
        back = walk.back(weights, signs)
    torch.testing.assert_close(ours, features.detach())
    torch.testing.assert_close(back, gradient)
    assert float(gradient.abs().max()) > 0
    unkept = walk.forward(images.detach(), keeps_signs=False)
    assert torch.equal(unkept[0], ours) and unkept[1] == []


def test_on_a_cpu_the_layers_are_called_one_by_one() -> None:
    assert not takes(frozen_backbone("wrn-10-1"), torch.zeros(1, 3, 8, 8))


def test_beside_other_runs_a_kernel_leaves_processors_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Properties:
        multi_processor_count = 132

    monkeypatch.setattr(sharing, "device_properties", lambda device: Properties)
    device = torch.device("cuda", 0)
    assert sharing.programs_at_most(device, 2) == sharing.programs_at_most(device, 320) == 132
    with shared_device():
        assert sharing.programs_at_most(device, sharing.LARGE_BATCH) == 66
        assert sharing.programs_at_most(device, sharing.LARGE_BATCH - 1) == 33
