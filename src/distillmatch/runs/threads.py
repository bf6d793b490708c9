"""Work side by side in threads of one process, each on a stream of its own on a GPU.

The pieces of work share nothing that their results depend on: every draw is a function of a seed
and names, and there is no common generator or cache. So each ends as it would alone.
"""

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import torch

from distillmatch.concurrency import shared_device
from distillmatch.engine import Progress
from distillmatch.errors import ConfigError
from distillmatch.runs.interruption import STOPPING, THREADS, Interrupted, StopRequest

MOST_AT_ONCE = 32
"""Streams of a GPU that torch keeps apart; beyond them two runs would share one."""
TURN_SECONDS = 0.2
CONTINUES = "what is done is kept, and the same command continues from there"
CONTINUED = "continued"
"""What a part is doing when it reports work that was done before."""

Work = Callable[[], None]
Tell = Callable[[str], None]


def work_side_by_side(
    next_work: Callable[[], Work | None], at_once: int, stop: StopRequest, tell: Tell
) -> None:
    """Do pieces of work until there are no more; raise `Interrupted` if a stop is asked for.

    An error in one of them stops the others where they can be resumed, and is then raised.
    """
    if not 1 <= at_once <= MOST_AT_ONCE:
        raise ConfigError(f"runs at once must be 1 to {MOST_AT_ONCE}, not {at_once}")

    def ask() -> Work | None:
        try:
            with stop.idle():
                return next_work()
        except Interrupted:
            if not stop.asked:
                raise
            return None

    if at_once > 1:
        with shared_device():
            _work_in_threads(ask, at_once, stop, tell)
        return
    while (work := ask()) is not None:
        work()
    if stop.asked:
        raise stop.interrupted(f"between two pieces of work; {CONTINUES}")


def _work_in_threads(
    next_work: Callable[[], Work | None], at_once: int, stop: StopRequest, tell: Tell
) -> None:
    """Do work in a pool of threads while this thread waits for signals.

    A second signal ends this thread at once, and the others after their epoch.
    """
    errors: list[BaseException] = []

    def do(work: Work) -> None:
        try:
            work()
        except BaseException as error:
            fail(error)

    def fail(error: BaseException) -> None:
        errors.append(error)
        if not isinstance(error, Interrupted):
            stop.ask("the failure of another")

    # torch keeps memory that was used on a stream for that stream: each thread keeps its own.
    pool = ThreadPoolExecutor(at_once, f"{THREADS}run", initializer=_own_stream)
    under_way: set[Future[None]] = set()
    is_all = is_told = False
    try:
        while under_way or not (is_all or stop.asked):
            if stop.signal_number is not None and not is_told:
                tell(STOPPING)
                is_told = True
            if len(under_way) == at_once or is_all or stop.asked:
                under_way = wait(under_way, TURN_SECONDS, FIRST_COMPLETED).not_done
                continue
            try:
                work = next_work()
            except Exception as error:
                fail(error)
                continue
            is_all = work is None and not stop.asked
            if work is not None:
                under_way.add(pool.submit(do, work))
    except BaseException:
        stop.ask("the end of their process")
        pool.shutdown(wait=False)
        raise
    pool.shutdown()
    for failure in errors:
        if not isinstance(failure, Interrupted):
            raise failure
    if errors or not is_all:
        count = f"{len(errors)} under way" if errors else "some left"
        raise stop.interrupted(f"with {count}; {CONTINUES}")


def _own_stream() -> None:
    """Let this thread compute on a stream of its own, where there is a GPU."""
    if torch.cuda.is_available():
        torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]


class SharedProgress:
    """Adds up the progress of several pieces of work, each of which takes it for its own.

    They are taken to be `parts` of equal size, unless the whole was started by somebody else.
    """

    def __init__(self, whole: Progress, parts: int | None = None) -> None:
        self.whole, self.parts = whole, parts
        self._lock = threading.Lock()

    def start(self, total: float, done: float = 0.0) -> None:
        """Begin one of them; the first one begins the whole."""
        with self._lock:
            if self.parts is not None:
                self.whole.start(total * self.parts, done)
                self.parts = None
            elif done:
                self.whole.advance(done, CONTINUED)

    def advance(self, done: float, doing: str) -> None:
        """Add finished work of one of them."""
        with self._lock:
            self.whole.advance(done, doing)

    def stop(self) -> None:
        """Do nothing: others may go on."""
