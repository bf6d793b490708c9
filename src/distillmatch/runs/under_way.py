"""How many runs a process does at once: the seconds of a result are those beside the others."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False)
class AtOnce:
    """The most runs that were under way at once while one of them was, with itself."""

    most: int = 0


_counting = threading.Lock()
_runs: list[AtOnce] = []


@contextmanager
def under_way() -> Iterator[AtOnce]:
    """Count a run among those of this process as long as the block lasts."""
    own = AtOnce()
    with _counting:
        _runs.append(own)
        for one in _runs:
            one.most = max(one.most, len(_runs))
    try:
        yield own
    finally:
        with _counting:
            _runs.remove(own)
