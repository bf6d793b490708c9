"""Whole weak and strong views: against Pillow, against the protocol, and their reproducibility."""

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from pillow_reference import magnitudes, strong_view, weak_view
from torch import Tensor

from distillmatch.views import (
    OPERATIONS,
    Normalization,
    plain_views,
    strong_views,
    view_key,
    weak_views,
)
from distillmatch.views.views import draw_strong, draw_weak

torch.set_num_threads(1)

NORMALIZATION = Normalization(mean=(0.5, 0.48, 0.44), std=(0.27, 0.25, 0.28))
NONE = Normalization(mean=(0.0,) * 3, std=(1.0,) * 3)
KEY = view_key(1, "test")
DRAWN = 36_000
VIEWS = (weak_views, strong_views)
MakeViews = Callable[..., Tensor]


@cache
def pictures(count: int = 300, side: int = 32) -> NDArray[np.uint8]:
    """Return smooth random pictures with some noise, like photographs."""
    random = np.random.default_rng(count + side)
    found = []
    for _ in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC)).astype(np.int16)
        noise = random.integers(-20, 21, (side, side, 3))
        found.append((smooth + noise).clip(0, 255).astype(np.uint8))
    return np.stack(found)


def batch(count: int = 300, side: int = 32) -> Tensor:
    return torch.from_numpy(pictures(count, side)).permute(0, 3, 1, 2)


def chi_square(values: Tensor, bins: int) -> float:
    counts = torch.bincount(values, minlength=bins).double()
    assert len(counts) == bins
    expected = len(values) / bins
    return float(((counts - expected) ** 2 / expected).sum())


def limit(degrees: int) -> float:
    """Five standard deviations above the mean of a chi-square variable."""
    return degrees + 5 * math.sqrt(2 * degrees)


def is_uniform(values: Tensor, low: float, high: float) -> bool:
    """Tell whether the values fill their range evenly and never leave it."""
    shares = (values.double() - low) / (high - low)
    assert float(shares.min()) > -1e-6 and float(shares.max()) < 1 + 1e-6
    return chi_square((shares * 40).long().clamp(0, 39), 40) < limit(39)


# Against Pillow


@pytest.mark.parametrize("side", [16, 32, 64])
def test_views_equal_pillows_to_the_byte(side: int) -> None:
    images, numbers = pictures(300, side), torch.arange(300)
    weak, strong = draw_weak(KEY, numbers), draw_strong(KEY, numbers, side)
    for make, expected in (
        (weak_views, [weak_view(image, weak, n) for n, image in enumerate(images)]),
        (strong_views, [strong_view(image, strong, n) for n, image in enumerate(images)]),
    ):
        found = make(batch(300, side), KEY, NONE).permute(0, 2, 3, 1)
        assert np.array_equal((found * 255).round().numpy(), np.stack(expected))


@pytest.mark.parametrize("make", [plain_views, *(partial(make, key=KEY) for make in VIEWS)])
def test_views_are_normalized(make: MakeViews) -> None:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in vars(NORMALIZATION).values())
    found, plain = (make(batch(), normalization=one) for one in (NORMALIZATION, NONE))
    inside = slice(None) if make is plain_views else plain != 0  # what is cut out stays zero
    torch.testing.assert_close(found[inside], ((plain - mean) / std)[inside], rtol=0, atol=4e-6)
    assert make is not plain_views or torch.equal((plain * 255).round(), batch().float())


# Against the protocol


def test_weak_draws_follow_the_protocol() -> None:
    draw = draw_weak(view_key(1), torch.arange(DRAWN))
    assert is_uniform(draw.jitter.brightness, 1 - 63 / 255, 1 + 63 / 255)
    assert is_uniform(draw.jitter.contrast, 0.2, 1.8)
    assert chi_square(draw.jitter.bright_first.long(), 2) < limit(1)
    assert chi_square(draw.flip.long(), 2) < limit(1)
    assert chi_square(draw.row, 9) < limit(8)
    assert chi_square(draw.column, 9) < limit(8)
    assert chi_square((draw.row * 9 + draw.column) * 2 + draw.flip, 162) < limit(161)


def test_strong_draws_follow_the_protocol() -> None:
    draw = draw_strong(view_key(2), torch.arange(DRAWN), side=32)
    assert is_uniform(draw.jitter.brightness, 1 - 63 / 255, 1 + 63 / 255)
    assert is_uniform(draw.jitter.contrast, 0.2, 1.8)
    assert chi_square(draw.jitter.bright_first.long(), 2) < limit(1)
    first, second = draw.operations
    # With replacement: all 256 pairs, a pair of equal operations among them, are equally likely.
    assert chi_square(first.choice * 16 + second.choice, 256) < limit(255)
    assert chi_square(draw.row * 32 + draw.column, 1024) < limit(1023)
    pairs = (first.share * 8).long() * 8 + (second.share * 8).long()
    assert chi_square(pairs, 64) < limit(63)
    assert chi_square(first.negative.long() * 2 + second.negative, 4) < limit(3)


@pytest.mark.parametrize("place", [0, 1])
def test_strong_magnitudes_follow_the_protocol(place: int) -> None:
    drawn = draw_strong(view_key(3), torch.arange(DRAWN), side=32).operations[place]
    drawn_magnitudes = magnitudes(drawn)
    for number, (name, operation) in enumerate(OPERATIONS.items()):
        mine = drawn_magnitudes[drawn.choice == number]
        if name == "posterize":
            assert chi_square(mine.long() - 4, 5) < limit(4)
        elif not operation.signed:
            assert name == "solarize" or bool((mine == 0).all())
            assert name != "solarize" or is_uniform(mine, 0, 256)
        else:
            away = mine - operation.center
            assert chi_square((away > 0).long(), 2) < limit(1)
            assert is_uniform(away.abs(), operation.low, operation.high)


def test_cut_out_is_a_clipped_square_of_half_the_side_in_mean_color() -> None:
    # The normalization keeps zero out of reach of every gray value, so zeros are the cut-out.
    unreachable = Normalization(mean=(0.0013,) * 3, std=(0.25,) * 3)
    views = strong_views(batch(), KEY, unreachable)
    draw = draw_strong(KEY, torch.arange(300), side=32)
    for view, row, column in zip(views, draw.row.tolist(), draw.column.tolist(), strict=True):
        expected = torch.zeros(32, 32, dtype=torch.bool)
        expected[max(0, row - 8) : row + 8, max(0, column - 8) : column + 8] = True
        assert torch.equal(view == 0, expected.expand(3, -1, -1))


# Reproducibility, memory and types


@pytest.mark.parametrize("make", VIEWS)
def test_a_view_depends_on_key_and_number_alone(make: MakeViews) -> None:
    images = batch().clone(memory_format=torch.preserve_format)
    whole = make(images, KEY, NORMALIZATION)
    assert torch.equal(images, batch()), "the images are left alone"
    assert torch.equal(whole, make(images.contiguous(), KEY, NORMALIZATION))
    parts = [
        make(images[start:stop], KEY, NORMALIZATION, first=start)
        for start, stop in ((0, 1), (1, 91), (91, 300))
    ]
    assert torch.equal(whole, torch.cat(parts))
    other = make(images, view_key(2, "test"), NORMALIZATION)
    assert float((whole == other).flatten(1).all(dim=1).float().mean()) < 0.01
    of_copies = make(images[:1].expand(50, -1, -1, -1), KEY, NORMALIZATION)
    assert len(torch.unique(of_copies.flatten(1), dim=0)) > 45


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", VIEWS)
def test_views_have_the_asked_type_and_channels_last_memory(
    make: MakeViews, dtype: torch.dtype
) -> None:
    views = make(batch(), KEY, NORMALIZATION, dtype=dtype)
    assert (views.dtype, views.shape) == (dtype, (300, 3, 32, 32))
    assert views.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(views, make(batch(), KEY, NORMALIZATION).to(dtype))
    assert make(batch()[:0], KEY, NORMALIZATION, dtype=dtype).shape == (0, 3, 32, 32)


# Normalization


def test_normalization_is_the_mean_and_deviation_of_all_pixels() -> None:
    images = np.random.default_rng(0).integers(0, 256, (9000, 8, 8, 3), dtype=np.uint8)
    images[..., 1] = 51
    found, values = Normalization.of(images), images.reshape(-1, 3) / 255
    np.testing.assert_allclose(found.mean, values.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(found.std[::2], values.std(axis=0)[::2], rtol=1e-12)
    assert found.std[1] == 1.0, "of a constant channel"


def test_impossible_normalizations_are_refused() -> None:
    with pytest.raises(ValueError, match="above zero"):
        Normalization(mean=(0.5, 0.5, 0.5), std=(0.2, 0.0, 0.2))
    with pytest.raises(ValueError, match="finite"):
        Normalization(mean=(0.5, math.nan, 0.5), std=(0.2, 0.2, 0.2))
    with pytest.raises(ValueError, match="at least one image"):
        Normalization.of(pictures()[:0])
