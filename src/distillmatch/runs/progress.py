"""One progress for several runs, or parts of one, that are told of from their threads."""

import threading

from distillmatch.engine import Progress

CONTINUED = "continued"
"""What a part is doing when it tells of work that was done before."""


class SharedProgress:
    """Adds up the progress of `parts`; unless it was started, their sizes are taken for equal."""

    def __init__(self, whole: Progress, parts: int) -> None:
        self.whole = whole
        self.parts = parts
        self._started = False
        self._lock = threading.Lock()

    def start(self, total: float, done: float = 0.0) -> None:
        """Begin to show, with all that there is to do."""
        self._started = True
        self.whole.start(total, done)

    def part(self) -> Progress:
        """Return what one part is to tell."""
        return _Part(self)

    def part_started(self, total: float, done: float) -> None:
        """Count in what a part that is continued had done before."""
        with self._lock:
            if not self._started:
                self.start(total * self.parts, done)
            elif done:
                self.whole.advance(done, CONTINUED)

    def advance(self, done: float, doing: str) -> None:
        """Add what a part has finished."""
        with self._lock:
            self.whole.advance(done, doing)

    def stop(self) -> None:
        """Show no more."""
        self.whole.stop()


class _Part:
    def __init__(self, shared: SharedProgress) -> None:
        self.shared = shared

    def start(self, total: float, done: float = 0.0) -> None:
        self.shared.part_started(total, done)

    def advance(self, done: float, doing: str) -> None:
        self.shared.advance(done, doing)

    def stop(self) -> None:
        """Have nothing to end: other parts may go on."""
