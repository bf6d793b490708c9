"""The kernel of a convolution and the normalization beside it, run on the host beside torch."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from on_host import ROOM, as_bytes, built
from slow import activated_by_parts
from torch import Tensor
from torch.nn import functional

from distillmatch.networks import Parts
from distillmatch.networks.kernels.convolution import STEP
from distillmatch.networks.kernels.convolution_normalization import Layout, Shares
from distillmatch.networks.kernels.parts import kernel_parts

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs g++ to compile the kernel for the host"
)

PARTS = ["eight_numbers", "parts", "row_streams"]


class Case:
    """Maps of a few images, in parts, and what belongs to them."""

    def __init__(self, layout: Layout, sizes: tuple[int, ...], of_sum: bool) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.layout, self.images, self.sizes = layout, sum(sizes), sizes
        self.maps = self.drawn(layout.channels_in).bfloat16()
        shape = [layout.channels_out, layout.channels_in]
        shape = shape[::-1] if layout.back else shape
        self.weights = (torch.randn(*shape, 3, 3, generator=self.generator) / 8).bfloat16()
        self.beside = self.drawn(layout.channels_out).bfloat16()
        self.of_sum = self.drawn(layout.channels_out).bfloat16() if of_sum else None
        self.numbers = torch.rand(4, layout.channels_out, generator=self.generator) + 0.5

    def drawn(self, channels: int) -> Tensor:
        shape = self.images, channels, self.layout.height, self.layout.width
        return torch.randn(shape, generator=self.generator)

    def coefficients(self) -> Tensor:
        """Return scale, shift, mean and inverse deviation by which `beside` is normalized."""
        weight, bias = self.numbers[:2]
        made = []
        for part in torch.split(self.beside.float(), list(self.sizes)):
            mean = part.mean((0, 2, 3))
            inverse = (part.var((0, 2, 3), correction=0) + 1e-5).rsqrt()
            made.append(
                torch.stack([weight * inverse, bias - mean * weight * inverse, mean, inverse])
            )
        return torch.stack(made)

    def run(self, program: Path, programs: int, moving: int = 1) -> tuple[Tensor, Tensor, Tensor]:
        """Return result, activated maps, and the four rows of numbers that are left."""
        layout, shares = self.layout, Shares.of(self.layout, self.sizes, programs)
        room = shares.rows_kept(layout)
        kept = max(layout.bytes_of_weights, sum(room) * layout.bytes_of_row)
        parts, changing = (kernel_parts(*one) for one in (shares, shares.change(layout, 1)))
        arguments = *room, kept + layout.bytes_of_rings, layout.bytes_of_change, layout.threads
        more = int(self.of_sum is not None), moving, *parts.ends, *parts.programs
        ends = *changing.programs, len(self.sizes)
        given = [as_bytes(self.maps), as_bytes(self.weights)]
        given += [as_bytes(self.beside)] * (layout.back or layout.adds)
        given += [] if self.of_sum is None else [as_bytes(self.of_sum)]
        given += [self.numbers.numpy().tobytes()]
        given += [self.coefficients().numpy().tobytes()] * layout.back
        finished = subprocess.run(
            [program, *map(str, (*arguments, *more, *ends))],
            input=b"".join(given),
            stdout=subprocess.PIPE,
            check=True,
        )
        count = self.images * layout.channels_out * layout.height * layout.width
        made = torch.frombuffer(bytearray(finished.stdout), dtype=torch.uint8)
        maps = made[: 4 * count].view(torch.bfloat16)
        maps = maps.view(2, self.images, layout.height, layout.width, layout.channels_out)
        result, activated = maps.permute(0, 1, 4, 2, 3).float()
        return result, activated, made[4 * count :].view(torch.float32).view(4, -1)


@pytest.mark.parametrize(
    ("channels_in", "channels_out", "width", "height", "adds", "sizes", "moving", "programs"),
    [
        (32, 32, 32, 4, False, (3, 2), 1, 2),
        (32, 32, 32, 8, True, (3,), 1, 2),
        (16, 32, 32, 4, False, (3, 2), 2, 2),
        (64, 64, 16, 8, False, (2, 1), 1, 3),
        (64, 64, 16, 4, True, (4,), 0, 2),
        (32, 32, 32, 4, True, (3, 2, 1), 3, 5),
        (64, 64, 16, 4, False, (1, 2, 3, 1), 2, 4),
    ],
)
def test_forward_it_is_torchs_convolution_sum_and_normalization(
    channels_in: int,
    channels_out: int,
    width: int,
    height: int,
    adds: bool,
    sizes: tuple[int, ...],
    moving: int,
    programs: int,
    tmp_path: Path,
) -> None:
    layout = Layout(channels_in, channels_out, height, width, False, adds, ROOM)
    case = Case(layout, sizes, False)
    program = built(tmp_path, "convolution_normalization", layout.constants, PARTS)
    result, activated, numbers = case.run(program, programs, moving)

    convolved = functional.conv2d(case.maps.float(), case.weights.float(), padding=1)
    summed = convolved.bfloat16().float() + case.beside.float() if adds else convolved
    torch.testing.assert_close(result, summed, rtol=2**-7, atol=0.02)
    layer = case.numbers.clone()
    expected = activated_by_parts(result, Parts(sizes, moving), layer.unbind())
    torch.testing.assert_close(activated, expected, rtol=2**-7, atol=2e-3)
    torch.testing.assert_close(numbers[:2], layer[2:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("channels", "width", "height", "of_sum", "sizes", "programs"),
    [
        (32, 32, 4, True, (3, 2), 2),
        (32, 32, 8, False, (3,), 3),
        (64, 16, 8, True, (2, 1), 2),
        (64, 16, 4, False, (4,), 2),
        (32, 32, 4, False, (2, 1, 3), 4),
        (64, 16, 4, True, (1, 2, 2, 1), 6),
    ],
)
def test_back_it_is_autograds_way_through_convolution_and_normalization(
    channels: int,
    width: int,
    height: int,
    of_sum: bool,
    sizes: tuple[int, ...],
    programs: int,
    tmp_path: Path,
) -> None:
    layout = Layout(channels, channels, height, width, True, False, ROOM)
    case = Case(layout, sizes, of_sum)
    program = built(tmp_path, "convolution_normalization", layout.constants, PARTS)
    result, _, numbers = case.run(program, programs)

    taken = functional.conv_transpose2d(case.maps.float(), case.weights.float(), padding=1)
    leaf = case.beside.float().requires_grad_()
    weight, bias = (one.clone().requires_grad_() for one in case.numbers[:2])
    expected = activated_by_parts(leaf, Parts(sizes, 0), (weight, bias))
    expected.backward(taken.bfloat16().float())  # type: ignore[no-untyped-call]
    assert leaf.grad is not None and weight.grad is not None and bias.grad is not None
    expected = leaf.grad + (0 if case.of_sum is None else case.of_sum.float())
    # A number on the edge of the ReLU may fall to either side.
    far = (result - expected).abs() > 2**-7 * expected.abs() + 0.02
    assert far.float().mean() < 1e-3
    wanted = torch.stack([weight.grad, bias.grad])
    torch.testing.assert_close(numbers[2:], wanted, rtol=1e-2, atol=0.3)


@pytest.mark.parametrize(
    "images",
    [(192, 128), (64,), (1, 1), (1, 32), (256, 192, 71), (4, 1, 1, 1), (128, 128, 128, 64)],
)
def test_every_part_has_programs_and_what_they_keep_fits(images: tuple[int, ...]) -> None:
    for channels, width, back in ((32, 32, False), (32, 32, True), (64, 16, False), (64, 16, True)):
        layout = Layout(channels, channels, width, width, back, False, ROOM)
        shares = Shares.of(layout, images, 132)
        assert shares.sizes == tuple(one * width // STEP for one in images)
        for one in (shares, shares.change(layout, 132)):
            assert 2 <= one.programs <= layout._sizes().change_each * 132
            assert all(
                1 <= has <= steps for has, steps in zip(one.programs_of, one.sizes, strict=True)
            )
        assert shares.programs <= 132
        kept = sum(shares.rows_kept(layout)) * layout.bytes_of_row
        assert max(kept, layout.bytes_of_weights) + layout.bytes_of_rings <= ROOM
