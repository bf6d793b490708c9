"""Random numbers for views: a hash of a key, the image's number and the number of the draw.

Unlike a `torch.Generator`, a hash of a counter gives the same view on the CPU and on a GPU, alone
and in a batch of thousands; it has no state to save, and the host knows what the GPU draws.

The hash is the finalizer of SplitMix64, on int64 tensors, whose products wrap around.
"""

from enum import IntEnum

import torch
from torch import Tensor

from distillmatch.randomness import random_integers

_UNIFORM_BITS = 24  # as many as a float32 holds exactly


def _signed(word: int) -> int:
    """Return the int64 with the same bits as an unsigned 64-bit word."""
    return word - (1 << 64) if word >= 1 << 63 else word


_STEP = _signed(0x9E3779B97F4A7C15)
_FACTORS = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)

Draw = IntEnum(
    "Draw",
    "WEAK_BRIGHTNESS WEAK_CONTRAST WEAK_ORDER FLIP CROP_ROW CROP_COLUMN "
    "STRONG_BRIGHTNESS STRONG_CONTRAST STRONG_ORDER FIRST_OPERATION FIRST_MAGNITUDE FIRST_SIGN "
    "SECOND_OPERATION SECOND_MAGNITUDE SECOND_SIGN CUTOUT_ROW CUTOUT_COLUMN",
    start=0,
)
"""The numbers of the draws; weak and strong views under one key share none."""


def view_key(seed: int, *purpose: str | int) -> int:
    """Return the 64-bit key of the views for a purpose under a seed."""
    return _signed(int(random_integers(seed, "views", *purpose, count=1)[0]))


def random_words(key: int, numbers: Tensor, *draws: Draw) -> Tensor:
    """Return 64 random bits for every draw and image: int64, (draws, images)."""
    # Mixing the number before adding the key keeps two keys from giving shifted sequences.
    image = _mix(_mix(numbers * _STEP) + key)
    # full() and not tensor(), whose copy to a GPU would wait.
    steps = [
        torch.full((1,), _signed((d + 1) * _STEP % (1 << 64)), device=image.device) for d in draws
    ]
    return _mix(image + torch.stack(steps))


def uniform(words: Tensor) -> Tensor:
    """Turn random words into float32 numbers in [0, 1)."""
    return _shift_right(words, 64 - _UNIFORM_BITS).to(torch.float32).mul_(2.0**-_UNIFORM_BITS)


def whole(words: Tensor, count: int) -> Tensor:
    """Turn random words into integers from 0 to `count` - 1."""
    return _shift_right(words, 64 - _UNIFORM_BITS).mul_(count) >> _UNIFORM_BITS


def coin(words: Tensor) -> Tensor:
    """Turn random words into fair booleans."""
    return words < 0


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the host to a device without waiting."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _shift_right(words: Tensor, bits: int) -> Tensor:
    """Shift as if the words were unsigned: mask the copies of the sign."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(words: Tensor) -> Tensor:
    words = (words ^ _shift_right(words, 30)).mul_(_FACTORS[0])
    words = (words ^ _shift_right(words, 27)).mul_(_FACTORS[1])
    return words ^ _shift_right(words, 31)
