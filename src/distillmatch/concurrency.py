"""How runs and pieces of work share a GPU: companion streams, and whether several runs use it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_companions: dict[tuple[torch.device, int, str], torch.cuda.Stream] = {}
_sharing = 0


def companion_stream(stream: torch.cuda.Stream, purpose: str) -> torch.cuda.Stream:
    """Return the stream for a purpose beside another: always the same one, of its priority.

    torch has 32 streams of each priority. A new one for every piece of work would soon be one that
    another run uses. Captures have a priority of their own, and so have their companions.
    """
    key = stream.device, stream.cuda_stream, purpose
    if key not in _companions:
        with torch.cuda.device(stream.device):
            _companions[key] = torch.cuda.Stream(priority=stream.priority)  # type: ignore[no-untyped-call]
    return _companions[key]


@contextmanager
def shared_device() -> Iterator[None]:
    """Declare that several runs use the device at once within the block, in whatever thread.

    It changes how work is queued, never its results.
    """
    global _sharing  # noqa: PLW0603  all threads of the process are meant
    _sharing += 1
    try:
        yield
    finally:
        _sharing -= 1


def device_is_shared() -> bool:
    """Return whether several runs use the device at once."""
    return _sharing > 0
