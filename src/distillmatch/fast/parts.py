"""Parts of a batch that have statistics of their own, as kernels are told of them."""

import ctypes
import functools
from collections.abc import Sequence
from itertools import accumulate

MOST_PARTS = 4
"""Parts that a batch may have in our kernels."""


class KernelParts(ctypes.Structure):
    """Where each part ends, and where its programs do; a part that there is not is an empty one."""

    _fields_ = (("ends", ctypes.c_int * MOST_PARTS), ("programs", ctypes.c_int * MOST_PARTS))


@functools.cache
def kernel_parts(sizes: tuple[int, ...], programs: tuple[int, ...]) -> KernelParts:
    """Describe parts of these sizes, which have so many programs each."""
    missing = [0] * (MOST_PARTS - len(sizes))
    return KernelParts(*(tuple(accumulate((*each, *missing))) for each in (sizes, programs)))


def share_programs(programs: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Share programs out to parts by their sizes: each has one at least."""
    shares: list[int] = []
    for number, end in enumerate(accumulate(sizes), 1):
        given, left = sum(shares), len(sizes) - number
        until = round(programs * end / sum(sizes))
        shares.append(min(max(until, given + 1), programs - left) - given)
    return tuple(shares)
