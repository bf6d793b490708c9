"""Work captured once as a CUDA graph and replayed: the device runs it without asking the host."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")

_one_at_a_time = threading.Lock()
_streams: dict[tuple[int, int], torch.cuda.Stream] = {}


class CapturedWork(Generic[Result]):
    """What `work` did when it was captured; its results lie in the same memory at every replay.

    It is done a few times before, so that libraries have chosen their kernels and optimizers have
    made their state; `undo` is called then, and after the capture. Other runs of the process may
    go on meanwhile, but not capture. Where two graphs are replayed at once, the one of lower
    `priority` comes first; it must be below 0.
    """

    def __init__(
        self,
        work: Callable[[], Result],
        trials: int,
        undo: Callable[[], None] | None = None,
        priority: int = -1,
    ) -> None:
        self.graph = torch.cuda.CUDAGraph()
        undo = undo or (lambda: None)
        with _one_at_a_time:
            current = torch.cuda.current_stream()
            stream = _capturing_stream(priority)
            stream.wait_stream(current)
            try:
                with torch.cuda.stream(stream):
                    for _ in range(trials):
                        work()
                current.wait_stream(stream)
                undo()
                with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                    self.result = work()
            finally:
                current.wait_stream(stream)
                undo()

    def replay(self) -> Result:
        """Do the work again on the current stream."""
        self.graph.replay()
        return self.result


def _capturing_stream(priority: int) -> torch.cuda.Stream:
    """Return a stream of a priority that no other work has: torch's streams come from pools.

    If another run's work came on a stream that captures, it would end up in the graph.
    """
    key = torch.cuda.current_device(), priority
    if key not in _streams:
        _streams[key] = torch.cuda.Stream(priority=priority)  # type: ignore[no-untyped-call]
    return _streams[key]


def why(error: RuntimeError) -> str:
    """Return the first line of what CUDA says against a capture."""
    return str(error).strip().split("\n")[0]
