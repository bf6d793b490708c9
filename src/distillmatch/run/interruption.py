"""Ctrl-C and SIGTERM: a run is stopped where it can be continued."""

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, and has; the message says how to continue."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message, signal_number)
        self.message = message
        self.exit_code = 128 + signal_number

    def __str__(self) -> str:
        return self.message


class StopRequest:
    """Within its block, notes that a signal asked to stop; a second one stops at once.

    Only the main thread can be told of signals; in another one nothing is noted.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.signal_number: int | None = None
        self._tell = tell
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if handler not in (None, signal.SIG_IGN):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            raise Interrupted("stopped at once; the last checkpoint can be continued from", number)
        self.signal_number = number
        with contextlib.suppress(RuntimeError):  # the signal came while something was printed
            self._tell("stopping at the end of this epoch; once more stops at once")
