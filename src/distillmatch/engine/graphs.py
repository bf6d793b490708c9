"""Work captured once as a CUDA graph and replayed: the device runs it without the host."""

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")

_one_at_a_time = threading.Lock()
_streams: dict[tuple[int, int], torch.cuda.Stream] = {}

FULL = 0.5
"""Share of a device's memory in use from which on a capture frees what torch caches."""


class CapturedWork(Generic[Result]):
    """A captured graph of `work`, whose results are in the same memory at every replay.

    The work runs a few times before, so that libraries choose their kernels; `undo` is called then,
    and after the capture. Other runs of the process may go on meanwhile, but not capture. Of two
    graphs that are replayed at once the one of lower `priority`, which is below 0, comes first.
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
                with torch.cuda.stream(stream), _captured_by(self.graph):
                    self.result = work()
            finally:
                current.wait_stream(stream)
                undo()

    def replay(self) -> Result:
        """Do the work again on the current stream."""
        self.graph.replay()
        return self.result


@contextmanager
def _captured_by(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture what is queued on the current stream within the block.

    torch's own context synchronizes the device and frees all cached memory each time: other runs
    would wait, and allocate theirs again.
    """
    free, total = torch.cuda.mem_get_info()
    if free < (1 - FULL) * total:
        torch.cuda.empty_cache()
    with _workspaces_of_its_own():
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            yield
        finally:
            graph.capture_end()


@contextmanager
def _workspaces_of_its_own() -> Iterator[None]:
    """Give matrix products within the block a workspace of their own.

    cuBLAS has one for each thread and stream. All backward passes of a process run in one thread
    and all captures on one stream: without this their graphs would share one, and graphs that are
    replayed at once would overwrite each other's numbers.
    """
    torch._C._cuda_clearCublasWorkspaces()  # torch has no public way to do it
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


def _capturing_stream(priority: int) -> torch.cuda.Stream:
    """Return a stream of a priority that no other work has: torch's streams come from pools.

    Another run's work on a stream that captures would end up in the graph.
    """
    key = torch.cuda.current_device(), priority
    if key not in _streams:
        _streams[key] = torch.cuda.Stream(priority=priority)  # type: ignore[no-untyped-call]
    return _streams[key]


def captured_or_none(make: Callable[[], Result], what: str) -> Result | None:
    """Return captured work, or None, with a warning, where `what` it is cannot be captured."""
    try:
        return make()
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(
            f"{what} cannot be captured as a CUDA graph and runs eagerly, which is slower: "
            f"{reason}",
            stacklevel=3,
        )
        return None
