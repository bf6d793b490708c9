"""Every operation, image by image, against Pillow."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from pillow_reference import PILLOW_OPERATIONS

from distillmatch.views import OPERATIONS

Pixels = NDArray[np.uint8]
SIDES = (16, 27, 64)

torch.set_num_threads(1)


@cache
def pictures(side: int) -> Pixels:
    """Return noise, smooth pictures, dark low-contrast pictures and constant ones."""
    random = np.random.default_rng(side)
    found = []
    for _ in range(12):
        noise = random.integers(0, 256, (side, side, 3), dtype=np.uint8)
        coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC))
        dull = (smooth // 9 + random.integers(0, 220)).astype(np.uint8)
        constant = np.broadcast_to(random.integers(0, 256, 3), (side, side, 3)).astype(np.uint8)
        found += [noise, smooth, dull, constant]
    found += [np.zeros((side, side, 3), np.uint8), np.full((side, side, 3), 255, np.uint8)]
    return np.stack(found)


def ours(name: str, images: Pixels, magnitudes: torch.Tensor) -> Pixels:
    before = torch.from_numpy(images.copy())
    after: Pixels = OPERATIONS[name].function(before, magnitudes).numpy()
    assert np.array_equal(before.numpy(), images), "the input was changed"
    return after


def pillows(name: str, images: Pixels, magnitudes: torch.Tensor) -> Pixels:
    operation = PILLOW_OPERATIONS[name]
    pairs = zip(images, magnitudes.tolist(), strict=True)
    return np.stack([np.asarray(operation(Image.fromarray(image), m)) for image, m in pairs])


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_equals_pillow_at_random_magnitudes(name: str, side: int) -> None:
    images = pictures(side)
    random = np.random.default_rng(1)
    share = torch.from_numpy(random.random(len(images), dtype=np.float32))
    negative = torch.from_numpy(random.random(len(images)) < 0.5)
    magnitudes = OPERATIONS[name].magnitude(share, negative)
    assert np.array_equal(ours(name, images, magnitudes), pillows(name, images, magnitudes))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", [name for name, op in OPERATIONS.items() if op.extremes()])
def test_operation_equals_pillow_at_the_ends_of_its_range(name: str, side: int) -> None:
    images = pictures(side)
    operation = OPERATIONS[name]
    for extreme in (*operation.extremes(), operation.center + operation.low):
        magnitudes = torch.full((len(images),), extreme)
        assert np.array_equal(ours(name, images, magnitudes), pillows(name, images, magnitudes))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["autocontrast", "equalize"]),
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, 1 << 30),
)
def test_stretching_equals_pillow_whatever_values_occur(
    name: str, one: int, other: int, seed: int
) -> None:
    low, high = sorted((one, other))
    random = np.random.default_rng(seed)
    images = random.integers(low, high + 1, (2, 24, 24, 3), dtype=np.uint8)
    images[:, 0, 0], images[:, 0, 1] = low, high
    none = torch.zeros(2)
    assert np.array_equal(ours(name, images, none), pillows(name, images, none))
