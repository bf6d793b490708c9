"""Pieces of work side by side in threads, on streams of their own, stopped all by one signal."""

import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch

from distillmatch.concurrency import shared_device
from distillmatch.errors import ConfigError
from distillmatch.runs.interruption import STOPPING, Interrupted, StopRequest
from distillmatch.runs.writer import THREAD as WRITER_THREAD

TURN_SECONDS = 0.2
MOST_AT_ONCE = 32
"""Streams of a GPU that torch keeps apart; beyond them two runs would share one."""
CONTINUES = "what is done is kept, and the same command continues from there"
FAILURE = "the failure of another"
THREAD = "distillmatch run"

Work = Callable[[], None]
Tell = Callable[[str], None]


def work_side_by_side(
    next_work: Callable[[], Work | None], at_once: int, stop: StopRequest, tell: Tell
) -> None:
    """Do pieces of work until there are no more; raise `Interrupted` if they were to stop.

    An error in one of them stops the others where they can be continued, and is raised then.
    """
    if not 1 <= at_once <= MOST_AT_ONCE:
        raise ConfigError(f"runs at once must be 1 to {MOST_AT_ONCE}, not {at_once}")
    if at_once == 1:
        while (work := _asked_for(next_work, stop)) is not None:
            work()
        if stop.asked:
            raise stop.interrupted(f"between two pieces of work; {CONTINUES}")
    else:
        with shared_device():
            _Threads(at_once, stop, tell).do(next_work)


def _asked_for(next_work: Callable[[], Work | None], stop: StopRequest) -> Work | None:
    """Return the next piece of work, or nothing if there is none or the signal to stop comes."""
    try:
        with stop.idle():
            return next_work()
    except Interrupted:
        if not stop.asked:
            raise
        return None


def end_process(stop: Interrupted) -> NoReturn:
    """End the process with a stop's code, even in the midst of an epoch or a write in a thread."""
    if any(thread.name in (THREAD, WRITER_THREAD) for thread in threading.enumerate()):
        # The interpreter would take down what they are using, and be aborted for it.
        for file in (sys.stdout, sys.stderr):
            file.flush()
        os._exit(stop.exit_code)
    raise SystemExit(stop.exit_code) from None


class _Threads:
    """Does pieces of work in threads while the thread that made it listens for signals.

    The threads do not keep the process alive: a second signal ends it in the midst of an epoch.
    """

    def __init__(self, at_once: int, stop: StopRequest, tell: Tell) -> None:
        self.stop = stop
        self.tell = tell
        self.error: BaseException | None = None
        self.stopped: list[Interrupted] = []
        # A stream belongs to a place and not to a piece of work, for torch keeps the memory that
        # was used on a stream for that stream alone.
        self.places: queue.SimpleQueue[AbstractContextManager[Any]] = queue.SimpleQueue()
        self.at_once = at_once
        for _ in range(at_once):
            self.places.put(_place())

    def do(self, next_work: Callable[[], Work | None]) -> None:
        """Give out all pieces of work and wait for them."""
        try:
            given_out = self._give_out(next_work)
            self._wait()
        except Exception:
            self.stop.ask(FAILURE)
            self._wait()
            raise
        except BaseException:  # this thread is to end at once; the others do after their epoch
            self.stop.ask("the end of their process")
            raise
        if self.error is not None:
            raise self.error
        if self.stopped or not given_out:
            count = f"{len(self.stopped)} under way" if self.stopped else "some left"
            raise self.stop.interrupted(f"with {count}; {CONTINUES}")

    def _give_out(self, next_work: Callable[[], Work | None]) -> bool:
        """Start pieces of work as places become free; return whether there are no more."""
        while not self.stop.asked:
            place = self._free_place()
            if place is None:
                continue
            work = _asked_for(next_work, self.stop)
            if work is None:
                self.places.put(place)
                return not self.stop.asked
            threading.Thread(
                target=self._work, args=(work, place), name=THREAD, daemon=True
            ).start()
        return False

    def _work(self, work: Work, place: AbstractContextManager[Any]) -> None:
        try:
            with place:
                work()
        except Interrupted as stopped:
            self.stopped.append(stopped)
        except BaseException as error:
            self.error = self.error or error
            self.stop.ask(FAILURE)
        finally:
            self.places.put(place)

    def _free_place(self) -> AbstractContextManager[Any] | None:
        try:
            return self.places.get(timeout=TURN_SECONDS)
        except queue.Empty:
            return None

    def _wait(self) -> None:
        """Wait until every place is free again."""
        free, told = 0, False
        while free < self.at_once:
            if self.stop.signal_number is not None and not told:
                self.tell(STOPPING)
                told = True
            free += self._free_place() is not None


def _place() -> AbstractContextManager[Any]:
    """Return where a run computes: a stream of its own where there is a GPU."""
    if not torch.cuda.is_available():
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]
