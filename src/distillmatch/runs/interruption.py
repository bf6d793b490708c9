"""Ctrl-C and SIGTERM: a run is stopped where it can be continued."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPING = "stopping at the end of this epoch; once more stops at once"


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

    Only the main thread can be told of signals: runs in other threads share the request of the one
    that started them, in which it can also be made without a signal. `tell` is called by the
    handler, in the midst of whatever the thread was doing: it must wait for nothing.
    """

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self.signal_number: int | None = None
        self.reason: str | None = None
        self._tell = tell
        self._idle: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether runs are to stop where they can be continued."""
        return self.reason is not None

    def ask(self, reason: str) -> None:
        """Ask without a signal; `reason` is what a run that stops says it was stopped by."""
        self.reason = self.reason or reason

    def interrupted(self, where: str) -> Interrupted:
        """Return what a run raises once it has stopped; `where` says how far it is."""
        number = signal.SIGTERM if self.signal_number is None else self.signal_number
        return Interrupted(f"stopped by {self.reason} {where}", number)

    @contextlib.contextmanager
    def idle(self, where: str = "while waiting") -> Iterator[None]:
        """Let the first signal raise `Interrupted` too, where nothing is done that would be lost.

        `where` is what it then says of that.
        """
        hears = _in_main_thread()
        try:
            if hears:
                self._idle = where
            if self.asked:
                raise self.interrupted(where)
            yield
        finally:
            if hears:
                self._idle = None

    def __enter__(self) -> Self:
        if _in_main_thread():
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
        self.reason = signal.Signals(number).name
        if self._idle is not None:
            raise self.interrupted(self._idle)
        if self._tell is not None:
            with contextlib.suppress(RuntimeError):  # it came while something was printed
                self._tell(STOPPING)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
