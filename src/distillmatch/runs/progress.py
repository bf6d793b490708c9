"""One progress for several runs, or parts of one, that advance in threads of their own."""

import threading

from distillmatch.engine import Progress

CONTINUED = "continued"
"""What a part is doing when it reports work that was done before."""


class SharedProgress:
    """Adds up the progress of `parts`, taken to be of equal size unless it was started."""

    def __init__(self, whole: Progress, parts: int) -> None:
        self.whole = whole
        self.parts = parts
        self._started = False
        self._lock = threading.Lock()

    def start(self, total: float, done: float = 0.0) -> None:
        """Begin with the whole work."""
        self._started = True
        self.whole.start(total, done)

    def part(self) -> Progress:
        """Return the progress of one part."""
        return _Part(self)

    def stop(self) -> None:
        """End the whole progress."""
        self.whole.stop()


class _Part:
    def __init__(self, shared: SharedProgress) -> None:
        self.shared = shared

    def start(self, total: float, done: float = 0.0) -> None:
        with self.shared._lock:
            if not self.shared._started:
                self.shared.start(total * self.shared.parts, done)
            elif done:
                self.shared.whole.advance(done, CONTINUED)

    def advance(self, done: float, doing: str) -> None:
        with self.shared._lock:
            self.shared.whole.advance(done, doing)

    def stop(self) -> None:
        """Do nothing: other parts may go on."""
