"""Random numbers that depend on a seed and a purpose, and on nothing else.

Streams must be the same on every machine, Python and library version, so the integers behind them
come from SHAKE-256, whose output is fixed by a standard. NumPy promises stable raw bits but not
stable shuffles, and the `random` module shares a global state.
"""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")


def random_integers(seed: int, *purpose: str | int, count: int) -> NDArray[np.uint64]:
    """Return 64-bit integers determined by the seed and the words that name their purpose."""
    name = "/".join([str(seed), *map(str, purpose)])
    raw = hashlib.shake_256(name.encode()).digest(8 * count)
    return np.frombuffer(raw, dtype="<u8").astype(np.uint64)


def permutation(count: int, seed: int, *purpose: str | int) -> NDArray[np.int64]:
    """Return a random order of `range(count)`."""
    keys = random_integers(seed, *purpose, count=count)
    return np.argsort(keys, kind="stable").astype(np.int64)


def shuffled(items: Sequence[Item], seed: int, *purpose: str | int) -> list[Item]:
    """Return the items in a random order."""
    return [items[i] for i in permutation(len(items), seed, *purpose)]
