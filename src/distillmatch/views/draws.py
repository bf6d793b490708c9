"""Random numbers for views: a hash of a key, the image's position and the number of the draw.

A `torch.Generator` gives other numbers on another device, gives an image other numbers when the
batch is cut elsewhere, and has a state to save. A hash of a counter has none of these troubles:
image 7 of a stream gets the same view on the CPU and on a GPU, alone and in a batch of thousands,
and the host can tell what a GPU has drawn without asking it.

The hash is the finaliser of SplitMix64, on int64 tensors, whose products wrap around.
"""

from enum import IntEnum

import torch
from torch import Tensor

from distillmatch.randomness import random_integers

_WORD = 1 << 64
_UNIFORM_BITS = 24  # as many as a float32 holds exactly


def _signed(word: int) -> int:
    """Return the int64 with the same bits as an unsigned 64-bit word."""
    return word - _WORD if word >= _WORD >> 1 else word


_STEP = _signed(0x9E3779B97F4A7C15)
_FIRST_FACTOR = _signed(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = _signed(0x94D049BB133111EB)


class Draw(IntEnum):
    """The numbers of all draws; weak and strong views under one key share none."""

    WEAK_BRIGHTNESS = 0
    WEAK_CONTRAST = 1
    WEAK_ORDER = 2
    FLIP = 3
    CROP_ROW = 4
    CROP_COLUMN = 5
    STRONG_BRIGHTNESS = 6
    STRONG_CONTRAST = 7
    STRONG_ORDER = 8
    FIRST_OPERATION = 9
    FIRST_MAGNITUDE = 10
    FIRST_SIGN = 11
    SECOND_OPERATION = 12
    SECOND_MAGNITUDE = 13
    SECOND_SIGN = 14
    CUTOUT_ROW = 15
    CUTOUT_COLUMN = 16


def view_key(seed: int, *purpose: str | int) -> int:
    """Return the 64-bit key of the views made under a seed for the purpose these words name."""
    return _signed(int(random_integers(seed, "views", *purpose, count=1)[0]))


def random_words(key: int, positions: Tensor, *draws: Draw) -> Tensor:
    """Return 64 random bits for every draw and position: int64, (draws, positions)."""
    # The position is mixed before the key is added, so that two keys never give shifted
    # copies of one sequence.
    image = _mix(_mix(positions * _STEP) + key)
    # full() rather than tensor(): a scalar travels to a GPU with the kernel, a tensor would wait.
    steps = [torch.full((1,), _signed((d + 1) * _STEP % _WORD), device=image.device) for d in draws]
    return _mix(image + torch.stack(steps))


def uniform(words: Tensor) -> Tensor:
    """Turn random words into float32 numbers in [0, 1)."""
    return _top_bits(words).to(torch.float32).mul_(2.0**-_UNIFORM_BITS)


def whole(words: Tensor, count: int) -> Tensor:
    """Turn random words into whole numbers from 0 up to, not including, `count`."""
    return _top_bits(words).mul_(count) >> _UNIFORM_BITS


def coin(words: Tensor) -> Tensor:
    """Turn random words into booleans that are true half of the time."""
    return words < 0


def positions_of(images: Tensor, positions: Tensor | None) -> Tensor:
    """Return the images' positions on the host: those given, or 0, 1, 2 and so on."""
    if positions is None:
        return torch.arange(len(images))
    if positions.dtype != torch.int64 or positions.shape != images.shape[:1]:
        raise ValueError(
            f"positions must be int64, one for each of the {len(images)} images, "
            f"not {positions.dtype} of shape {tuple(positions.shape)}"
        )
    if positions.device.type != "cpu":
        raise ValueError(
            f"positions must be on the CPU, where draws are sorted, not on {positions.device}"
        )
    return positions


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device without waiting for the device."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _top_bits(words: Tensor) -> Tensor:
    return _shift_right(words, 64 - _UNIFORM_BITS)


def _shift_right(words: Tensor, bits: int) -> Tensor:
    """Shift as if the words were unsigned: int64 shifts copy the sign, so it is masked away."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(words: Tensor) -> Tensor:
    words = (words ^ _shift_right(words, 30)).mul_(_FIRST_FACTOR)
    words = (words ^ _shift_right(words, 27)).mul_(_SECOND_FACTOR)
    return words ^ _shift_right(words, 31)
