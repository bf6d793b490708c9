"""Streams beside others, for work that fills the gaps of theirs."""

import torch

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
