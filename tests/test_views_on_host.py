"""The kernels of views, run thread by thread on the host, beside torch's operations: to the bit."""

import shutil
from functools import cache

import pytest
import torch
from on_host import KernelOnHost, built
from torch import Tensor

from distillmatch.cuda.compiled import Argument
from distillmatch.views import OPERATIONS, Normalization, kernels, strong_views, weak_views
from distillmatch.views.strong import draw_strong

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs g++ to compile the kernels for the host"
)

NORMALIZATION = Normalization(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))
KEYS = (0, 1, -(1 << 63), 0x1234_5678_9ABC_DEF0)
SIDES = (1, 2, 3, 8, 16, 31, 32)
DTYPES = (torch.float32, torch.bfloat16)
SINGLE, DRAWN = "single_operation", "drawn_numbers"


@pytest.fixture(scope="module", name="on_host")
def kernels_on_host(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KernelOnHost]:
    parts = [part.removesuffix(".cu") for part in kernels.PARTS]
    folder, flags = tmp_path_factory.mktemp("views"), ["-shared", "-fPIC"]
    library = built(folder, "views", kernels.constants(), parts, kernels.FOLDER, flags)
    return {name: KernelOnHost(library, name) for name in (*kernels.NAMES, SINGLE, DRAWN)}


@pytest.fixture(autouse=True)
def kernels_take_the_host(
    monkeypatch: pytest.MonkeyPatch, on_host: dict[str, KernelOnHost]
) -> None:
    monkeypatch.setattr(kernels, "_kernels", lambda device: on_host)


@cache
def pictures(count: int, side: int) -> Tensor:
    """Return noise, slopes, dull pictures, pictures of one grey, black and white ones."""
    generator = torch.Generator().manual_seed(side)

    def drawn(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    steps = torch.arange(side)
    made = []
    for number in range(count):
        noise = drawn(0, 256, side, side, 3)
        slope = steps.view(-1, 1, 1) * drawn(0, 9, 3) + steps.view(1, -1, 1) * drawn(0, 9, 3)
        dull = drawn(0, 220, 3) + noise // 9
        grey = drawn(0, 256, 1).expand(side, side, 3)
        ends = [torch.zeros_like(noise), torch.full_like(noise, 255)]
        made.append([noise, slope + noise // 20, dull, noise, grey, *ends][number % 7])
    return torch.stack(made).clamp(0, 255).to(torch.uint8)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Tell whether floats agree in all bits: zeros have signs."""
    words = torch.int32 if one.dtype == torch.float32 else torch.int16
    return torch.equal(one.contiguous().view(words), other.contiguous().view(words))


def positions_of(count: int, seed: int) -> Tensor:
    return torch.randint(1 << 40, (count,), generator=torch.Generator().manual_seed(seed))


def assert_the_same(
    pixels: Tensor, key: int, positions: Tensor, dtype: torch.dtype, padding: int = 4
) -> None:
    images = pixels.permute(0, 3, 1, 2)
    given = pixels, key, positions, NORMALIZATION, dtype
    by_torch = weak_views(
        images, key, NORMALIZATION, dtype=dtype, positions=positions, padding=padding
    )
    assert same_bits(kernels.weak_views(*given, padding), by_torch.permute(0, 2, 3, 1))
    by_torch = strong_views(images, key, NORMALIZATION, dtype=dtype, positions=positions)
    assert same_bits(kernels.strong_views(*given), by_torch.permute(0, 2, 3, 1))


def single(on_host: dict[str, KernelOnHost], name: str, pixels: Tensor, by: Tensor) -> Tensor:
    """Return what the kernel's operation makes of pixels."""
    changed, (count, side) = torch.empty_like(pixels), pixels.shape[:2]
    number, room = list(OPERATIONS).index(name), kernels.room(side)
    positions, shared_bytes = torch.zeros(count, dtype=torch.int64), kernels._shared_bytes(side)
    given: list[Argument] = [pixels, positions, changed, by, number, side, room]
    on_host[SINGLE].launch((count, 1), 32 * kernels.WARPS, shared_bytes, given)
    return changed


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_torchs(name: str, on_host: dict[str, KernelOnHost]) -> None:
    operation = OPERATIONS[name]
    share = torch.tensor([0.0, 0.27, 0.71, 1.0])
    both = [torch.full((len(share),), negative) for negative in (False, True)]
    magnitudes = torch.cat([operation.magnitude(share, negative) for negative in both])
    for side in SIDES:
        pixels = pictures(len(magnitudes), side)
        expected = operation.function(pixels.clone(), magnitudes)
        assert torch.equal(single(on_host, name, pixels, magnitudes), expected), side


@pytest.mark.parametrize("key", KEYS)
def test_what_is_drawn_is_what_torch_draws(key: int, on_host: dict[str, KernelOnHost]) -> None:
    positions = positions_of(256, 1)
    numbers = torch.empty(len(positions), 2 + len(OPERATIONS))
    settings = kernels._settings(NORMALIZATION)
    on_host[DRAWN].launch((1, 1), len(positions), 0, [positions, key, numbers, settings])
    draw = draw_strong(key, positions, 8)
    second = draw.operations[1]
    magnitudes = [one.magnitude(second.share, second.negative) for one in OPERATIONS.values()]
    expected = [draw.jitter.brightness, draw.jitter.contrast, *magnitudes]
    assert torch.equal(numbers, torch.stack(expected, dim=1))


@pytest.mark.parametrize("low,high", [(0, 1), (0, 255), (17, 18), (3, 251), (100, 164)])
@pytest.mark.parametrize("name", ["autocontrast", "equalize"])
def test_values_are_stretched_as_torch_does_it_whatever_occurs(
    name: str, low: int, high: int, on_host: dict[str, KernelOnHost]
) -> None:
    pixels = (low + pictures(7, 24).int() % (high - low + 1)).to(torch.uint8)
    pixels[:, 0, 0], pixels[:, 0, 1] = low, high
    expected = OPERATIONS[name].function(pixels.clone(), torch.zeros(7))
    assert torch.equal(single(on_host, name, pixels, torch.zeros(7)), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("side", SIDES)
def test_whole_views_are_torchs(side: int, dtype: torch.dtype) -> None:
    for number, key in enumerate(KEYS):
        positions = positions_of(6, 100 * side + number)
        assert_the_same(pictures(6, side), key, positions, dtype, padding=number * 2)


def test_views_of_pairs_of_operations_are_torchs() -> None:
    positions = torch.arange(64)
    drawn = draw_strong(KEYS[3], positions, 16).operations
    for operations in drawn:
        assert set(operations.choice.tolist()) == set(range(len(OPERATIONS)))
    assert_the_same(pictures(64, 16), KEYS[3], positions, torch.bfloat16)


@pytest.mark.parametrize("side", [9, 16])
def test_squares_at_the_border_are_cut_out_as_torch_does_it(side: int) -> None:
    everywhere = torch.arange(4000)
    draw = draw_strong(KEYS[1], everywhere, side)
    corners = [(0, 0), (0, side - 1), (side - 1, 0), (side - 1, side - 1), (side // 2, side // 2)]
    found = [
        ((draw.row == row) & (draw.column == column)).nonzero()[0, 0] for row, column in corners
    ]
    assert_the_same(pictures(5, side), KEYS[1], torch.stack(found), torch.float32)


@pytest.mark.parametrize("offset", [0, 1, 768])
def test_images_may_begin_anywhere_and_positions_lie_apart(offset: int) -> None:
    memory = torch.zeros(3 * 768 + offset, dtype=torch.uint8)
    pixels = memory[offset:].view(3, 16, 16, 3)
    pixels.copy_(pictures(3, 16))
    assert_the_same(pixels, KEYS[0], torch.arange(6)[::2], torch.float32)


def test_the_largest_image_fits_beside_its_copy() -> None:
    assert kernels._shared_bytes(kernels.LARGEST_SIDE) <= 99 * 1024
    assert kernels.room(1) == kernels.TABLES
    assert kernels.room(45) >= 3 * 45 * 45 and kernels.room(45) % 16 == 0


def test_what_is_not_on_cuda_is_left_to_torch() -> None:
    assert not kernels.takes(pictures(2, 8), torch.float32)
