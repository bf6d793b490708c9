"""The kernel of a convolution and the normalization beside it, run on the host beside torch."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from on_host import ROOM, as_bytes, built
from torch import Tensor
from torch.nn import functional

from distillmatch.networks.kernels.convolution import STEP
from distillmatch.networks.kernels.convolution_normalization import Layout, Shares

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs g++ to compile the kernel for the host"
)

PARTS = ["eight_numbers", "row_streams"]


class Case:
    """Maps of a few images and what belongs to them, of which the first are a portion."""

    def __init__(self, layout: Layout, images: int, leading: int | None, of_sum: bool) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.layout, self.images, self.leading = layout, images, leading
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

    def portions(self, maps: Tensor) -> list[Tensor]:
        return [maps] if self.leading is None else [maps[: self.leading], maps[self.leading :]]

    def coefficients(self) -> Tensor:
        """Return scale, shift, mean and inverse deviation by which `beside` is normalized."""
        weight, bias = self.numbers[:2]
        made = []
        for part in self.portions(self.beside.float()):
            mean = part.mean((0, 2, 3))
            inverse = (part.var((0, 2, 3), correction=0) + 1e-5).rsqrt()
            made.append(
                torch.stack([weight * inverse, bias - mean * weight * inverse, mean, inverse])
            )
        return torch.stack(made)

    def run(self, program: Path, programs: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return result, activated maps, and the four rows of numbers that are left."""
        layout, shares = self.layout, Shares.of(self.layout, self.images, self.leading, programs)
        room = shares.rows_kept(layout)
        kept = max(layout.bytes_of_weights, sum(room) * layout.bytes_of_row)
        change = *shares.change(layout, 1), layout.bytes_of_change
        arguments = *shares, *room, kept + layout.bytes_of_rings, *change, layout.threads
        given = [as_bytes(self.maps), as_bytes(self.weights)]
        given += [as_bytes(self.beside)] * (layout.back or layout.adds)
        given += [] if self.of_sum is None else [as_bytes(self.of_sum)]
        given += [self.numbers.numpy().tobytes()]
        given += [self.coefficients().numpy().tobytes()] * layout.back
        finished = subprocess.run(
            [program, *map(str, arguments), str(int(self.of_sum is not None))],
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
    ("channels_in", "channels_out", "width", "height", "adds", "images", "leading", "programs"),
    [
        (32, 32, 32, 4, False, 5, 3, 2),
        (32, 32, 32, 8, True, 3, None, 2),
        (16, 32, 32, 4, False, 5, 3, 2),
        (64, 64, 16, 8, False, 3, 2, 3),
        (64, 64, 16, 4, True, 4, None, 2),
    ],
)
def test_forward_it_is_torchs_convolution_sum_and_normalization(
    channels_in: int,
    channels_out: int,
    width: int,
    height: int,
    adds: bool,
    images: int,
    leading: int | None,
    programs: int,
    tmp_path: Path,
) -> None:
    layout = Layout(channels_in, channels_out, height, width, False, adds, ROOM)
    case = Case(layout, images, leading, False)
    program = built(tmp_path, "convolution_normalization", layout.constants, PARTS)
    result, activated, numbers = case.run(program, programs)

    convolved = functional.conv2d(case.maps.float(), case.weights.float(), padding=1)
    summed = convolved.bfloat16().float() + case.beside.float() if adds else convolved
    torch.testing.assert_close(result, summed, rtol=2**-7, atol=0.02)
    weight, bias, mean, variance = case.numbers.clone()
    parts = [
        functional.batch_norm(part, *statistics, weight, bias, True)
        for part, statistics in zip(
            case.portions(result), [(mean, variance), (None, None)], strict=False
        )
    ]
    expected = functional.relu(torch.cat(parts))
    torch.testing.assert_close(activated, expected, rtol=2**-7, atol=2e-3)
    torch.testing.assert_close(numbers[:2], torch.stack([mean, variance]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("channels", "width", "height", "of_sum", "images", "leading", "programs"),
    [
        (32, 32, 4, True, 5, 3, 2),
        (32, 32, 8, False, 3, None, 3),
        (64, 16, 8, True, 3, 2, 2),
        (64, 16, 4, False, 4, None, 2),
    ],
)
def test_back_it_is_autograds_way_through_convolution_and_normalization(
    channels: int,
    width: int,
    height: int,
    of_sum: bool,
    images: int,
    leading: int | None,
    programs: int,
    tmp_path: Path,
) -> None:
    layout = Layout(channels, channels, height, width, True, False, ROOM)
    case = Case(layout, images, leading, of_sum)
    program = built(tmp_path, "convolution_normalization", layout.constants, PARTS)
    result, _, numbers = case.run(program, programs)

    taken = functional.conv_transpose2d(case.maps.float(), case.weights.float(), padding=1)
    leaf = case.beside.float().requires_grad_()
    weight, bias = (one.clone().requires_grad_() for one in case.numbers[:2])
    parts = [
        functional.relu(functional.batch_norm(part, None, None, weight, bias, True))
        for part in case.portions(leaf)
    ]
    torch.cat(parts).backward(taken.bfloat16().float())  # type: ignore[no-untyped-call]
    assert leaf.grad is not None and weight.grad is not None and bias.grad is not None
    expected = leaf.grad + (0 if case.of_sum is None else case.of_sum.float())
    # A number on the edge of the ReLU may fall to either side.
    far = (result - expected).abs() > 2**-7 * expected.abs() + 0.02
    assert far.float().mean() < 1e-3
    wanted = torch.stack([weight.grad, bias.grad])
    torch.testing.assert_close(numbers[2:], wanted, rtol=1e-2, atol=0.3)


@pytest.mark.parametrize(("images", "leading"), [(320, 192), (64, None), (2, 1), (33, 1)])
def test_every_portion_has_programs_and_what_they_keep_fits(
    images: int, leading: int | None
) -> None:
    for channels, width, back in ((32, 32, False), (32, 32, True), (64, 16, False), (64, 16, True)):
        layout = Layout(channels, channels, width, width, back, False, ROOM)
        shares = Shares.of(layout, images, leading, 132)
        assert shares.steps == images * width // STEP
        assert 2 <= shares.programs <= 132
        for programs, of_first in (
            (shares.programs, shares.programs_of_first),
            shares.change(layout, 132),
        ):
            parts = [of_first, programs - of_first][: 1 if leading is None else 2]
            assert all(part >= 1 for part in parts) and sum(parts) == programs
            assert parts[0] <= shares.leading
            assert leading is None or parts[1] <= shares.steps - shares.leading
        kept = sum(shares.rows_kept(layout)) * layout.bytes_of_row
        assert max(kept, layout.bytes_of_weights) + layout.bytes_of_rings <= ROOM
