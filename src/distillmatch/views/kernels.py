"""All weak or all strong views of a batch in one launch on CUDA, with the bits that torch gives.

A program makes the view of one image in shared memory and draws by itself, as draws are hashes. How
operations are numbered and how draws become magnitudes is told to the kernels, so that it stands
with the functions in torch alone.
"""

import ctypes
import functools

import torch
from torch import Tensor

from distillmatch.cuda.compiled import Argument, Kernel, load_if_possible
from distillmatch.views.draws import Draw
from distillmatch.views.jitter import BRIGHTNESS_SPREAD, CONTRAST_SPREAD
from distillmatch.views.normalization import Normalization
from distillmatch.views.operations import OPERATIONS

FOLDER = "views/cuda"
PARTS = ("pictures.cu", "operations.cu")
NAMES = ("weak_views", "strong_views")
DTYPES = (torch.float32, torch.bfloat16)
WARPS = 8
KEPT = 256
"""Bytes of shared memory for the draws of an image and for sums."""
TABLES = 3 * 256 * 5
"""Bytes that histograms and tables of the three channels need beside an image."""
LARGEST_SIDE = 128
"""Two images of it fit into the 99 KiB that the smallest of these devices give a program."""


class _Spread(ctypes.Structure):
    _fields_ = (("low", ctypes.c_float), ("span", ctypes.c_float))


class _Magnitude(ctypes.Structure):
    _fields_ = (
        ("low", ctypes.c_float),
        ("span", ctypes.c_float),
        ("centre", ctypes.c_float),
        ("high", ctypes.c_float),
        ("is_signed", ctypes.c_int),
        ("is_whole", ctypes.c_int),
    )


class _Settings(ctypes.Structure):
    _fields_ = (
        ("scales", ctypes.c_float * 3),
        ("shifts", ctypes.c_float * 3),
        ("brightness", _Spread),
        ("contrast", _Spread),
        ("magnitudes", _Magnitude * len(OPERATIONS)),
    )


def takes(pixels: Tensor, dtype: torch.dtype) -> bool:
    """Tell whether the kernels can make views of uint8 pixels (count, side, side, 3)."""
    if not pixels.is_cuda or not pixels.numel() or pixels.shape[1] > LARGEST_SIDE:
        return False
    return dtype in DTYPES and _kernels(pixels.get_device()) is not None


def weak_views(
    pixels: Tensor,
    key: int,
    positions: Tensor,
    normalization: Normalization,
    dtype: torch.dtype,
    padding: int,
) -> Tensor:
    """Return weak views of pixels at positions on the same device, as (count, side, side, 3)."""
    return _made("weak_views", pixels, key, positions, normalization, dtype, padding)


def strong_views(
    pixels: Tensor, key: int, positions: Tensor, normalization: Normalization, dtype: torch.dtype
) -> Tensor:
    """Return strong views of pixels at positions on the same device, as (count, side, side, 3)."""
    return _made("strong_views", pixels, key, positions, normalization, dtype)


def constants() -> dict[str, int]:
    """Return what the compiler is told."""
    of_draws = {f"DRAW_{draw.name}": int(draw) for draw in Draw}
    of_operations = {f"OPERATION_{name.upper()}": number for number, name in enumerate(OPERATIONS)}
    counts = {"DRAWS": len(Draw), "OPERATIONS": len(OPERATIONS)}
    return {"WARPS": WARPS, "KEPT": KEPT, **counts, **of_draws, **of_operations}


def room(side: int) -> int:
    """Return the bytes of shared memory for an image, or for the tables that may take its place."""
    return max(-(-3 * side * side // 16) * 16, TABLES)


def _made(
    name: str,
    pixels: Tensor,
    key: int,
    positions: Tensor,
    normalization: Normalization,
    dtype: torch.dtype,
    *more: int,
) -> Tensor:
    count, side = pixels.shape[:2]
    kernels = _kernels(pixels.get_device())
    assert kernels is not None
    views = torch.empty(pixels.shape, dtype=dtype, device=pixels.device)
    halves = dtype == torch.bfloat16
    given: list[Argument] = [pixels, positions.contiguous(), key, views, side, room(side), halves]
    given += [*more, _settings(normalization)]
    with torch.cuda.device_of(pixels):  # type: ignore[no-untyped-call]
        kernels[name].launch((count, 1), 32 * WARPS, _shared_bytes(side), given)
    return views


def _shared_bytes(side: int) -> int:
    return KEPT + 2 * room(side)


@functools.lru_cache(maxsize=16)
def _settings(normalization: Normalization) -> _Settings:
    """Return what all views have in common; numbers become float32 as scalars of torch do."""
    scales, shifts = normalization.scales_and_shifts()
    magnitudes = [
        _Magnitude(one.low, one.span, one.centre, one.high, one.signed, one.whole)
        for one in OPERATIONS.values()
    ]
    return _Settings(
        (ctypes.c_float * 3)(*scales),
        (ctypes.c_float * 3)(*shifts),
        _Spread(1 - BRIGHTNESS_SPREAD, 2 * BRIGHTNESS_SPREAD),
        _Spread(1 - CONTRAST_SPREAD, 2 * CONTRAST_SPREAD),
        (_Magnitude * len(OPERATIONS))(*magnitudes),
    )


@functools.cache
def _kernels(device: int) -> dict[str, Kernel] | None:
    given = NAMES, constants(), _shared_bytes(LARGEST_SIDE), "torch's own operations are used"
    kernels = load_if_possible(FOLDER, device, "views.cu", *given, parts=PARTS)
    return None if kernels is None else dict(zip(NAMES, kernels, strict=True))
