"""Streams beside others, for work that fills the gaps of theirs, and what they may not share."""

import torch
from torch import Tensor

_beside: dict[tuple[torch.device, int, str], torch.cuda.Stream] = {}


def stream_beside(stream: torch.cuda.Stream, purpose: str) -> torch.cuda.Stream:
    """Return the stream for a purpose beside another, always the same one, of its priority.

    torch has 32 streams of a priority: one for each piece of work would soon be that of another
    run. A stream that captures has a priority that no work but captures has, and so it is with the
    one beside it.
    """
    key = stream.device, stream.cuda_stream, purpose
    if key not in _beside:
        with torch.cuda.device(stream.device):
            _beside[key] = torch.cuda.Stream(priority=stream.priority)  # type: ignore[no-untyped-call]
    return _beside[key]


class Counters:
    """What the programs of a launch count each other by, apart for each stream of launches.

    They are zeros before and after every launch. Launches of one stream follow each other; those of
    two may be under way at once, of the same layer too: a frozen network that is asked within a
    step is asked beside it about the images of the next epoch. If they shared their counters some
    programs would go on too early, and others wait for ever.

    A graph has the counters of the stream that it was captured on, and steps are captured on
    another one than scores.
    """

    def __init__(self) -> None:
        self._of_streams: dict[tuple[torch.device, int], Tensor] = {}

    def __deepcopy__(self, memo: object) -> "Counters":
        """Return new ones: what is copied may be under way."""
        return Counters()

    def of(self, device: torch.device, stream: int, count: int) -> Tensor:
        """Return those of a stream, zeros when it asks first."""
        key = device, stream
        if key not in self._of_streams:
            self._of_streams[key] = torch.zeros(count, dtype=torch.int32, device=device)
        return self._of_streams[key]
