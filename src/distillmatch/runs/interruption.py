"""Ctrl-C and SIGTERM: a run stops where it can be resumed."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPING = "stopping at the end of this epoch; once more stops at once"
THREADS = "distillmatch "
"""How the names of threads begin that must not keep the process from its end."""


class Interrupted(KeyboardInterrupt):
    """A run stopped on request; the message says how to resume it."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message, signal_number)
        self.message = message
        self.exit_code = 128 + signal_number

    def __str__(self) -> str:
        return self.message


class StopRequest:
    """Within its block, a first signal asks runs to stop, and a second stops them at once.

    Only the main thread receives signals: runs in other threads share its request, which can also
    be made by `ask`. `tell` is called by the signal handler and must not wait for anything.
    """

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self.signal_number: int | None = None
        self.reason: str | None = None
        self._tell = tell
        self._idle: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether runs are to stop where they can be resumed."""
        return self.reason is not None

    def ask(self, reason: str) -> None:
        """Ask runs to stop, without a signal; the first reason counts."""
        self.reason = self.reason or reason

    def interrupted(self, where: str) -> Interrupted:
        """Return the exception for a run that has stopped; `where` is how far it is."""
        number = signal.SIGTERM if self.signal_number is None else self.signal_number
        return Interrupted(f"stopped by {self.reason} {where}", number)

    @contextlib.contextmanager
    def idle(self, where: str = "while waiting") -> Iterator[None]:
        """Let the first signal raise `Interrupted` within the block, where nothing is lost."""
        try:
            self._idle = where
            if self.asked:
                raise self.interrupted(where)
            yield
        finally:
            self._idle = None

    def __enter__(self) -> Self:
        in_main_thread = threading.current_thread() is threading.main_thread()
        for number in SIGNALS if in_main_thread else ():
            handler = signal.getsignal(number)
            if handler not in (None, signal.SIG_IGN):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            raise Interrupted("stopped at once; the last checkpoint can be resumed", number)
        self.signal_number = number
        self.reason = signal.Signals(number).name
        if self._idle is not None:
            raise self.interrupted(self._idle)
        if self._tell is not None:
            with contextlib.suppress(RuntimeError):  # the signal came during a print
                self._tell(STOPPING)


def end_process(stop: Interrupted) -> NoReturn:
    """Exit with the code of a signal, even during an epoch in another thread."""
    if any(thread.name.startswith(THREADS) for thread in threading.enumerate()):
        # The interpreter would free what these threads use, and abort.
        for file in (sys.stdout, sys.stderr):
            file.flush()
        os._exit(stop.exit_code)
    raise SystemExit(stop.exit_code) from None
