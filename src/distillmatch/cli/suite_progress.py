"""Live progress over all runs of a queue, with the time left."""

import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn

from distillmatch.terminal import duration, plain_column, plain_console

if TYPE_CHECKING:
    from distillmatch.suite.queue import Queue

LINE_SECONDS = 30.0
JUDGED_SHARE, JUDGED_SECONDS, LONG_SECONDS = 0.02, 10.0, 60.0
"""The time left is judged by at least so much of the work and so many seconds of it; in a queue of
hours, by so many seconds alone.
"""


class SuiteProgress:
    """A bar on standard error; where that is no terminal, a line whenever a run ends or in a while.

    Sentences that it is told are printed above the bar.
    """

    def __init__(self) -> None:
        self.console = plain_console(stderr=True, highlight=False)
        self._first: tuple[float, float] | None = None
        self._most_begun = 0
        self._said = ""
        self._said_at = float("-inf")
        self._bar: Progress | None = None
        if self.console.is_terminal:
            self._bar = Progress(
                plain_column("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TimeElapsedColumn(),
                plain_column("{task.fields[left]}"),
                console=self.console,
                transient=True,
            )
            self._bar.add_task("", total=1.0, left="")

    def tell(self, sentence: str) -> None:
        """Print a sentence."""
        self.console.print(f"distillmatch: {sentence}", soft_wrap=True)

    def show(self, queue: "Queue") -> None:
        """Show how the runs stand."""
        wanted, done = queue.work()
        share = done / wanted if wanted else 1.0
        standing, left = describe(queue), self._left(wanted, done, begun_runs(queue))
        if self._bar is not None:
            self._bar.start()  # not before: what is told and fetched first has bars of its own
            self._bar.update(
                self._bar.task_ids[0], completed=share, description=standing, left=left
            )
            return
        now = time.monotonic()
        if standing != self._said or now - self._said_at >= LINE_SECONDS:
            self._said, self._said_at = standing, now
            words = [f"{100 * share:.0f} %", left] if left else [f"{100 * share:.0f} %"]
            self.console.print(f"distillmatch: {standing}: {', '.join(words)}", soft_wrap=True)

    def stop(self) -> None:
        """Show no more."""
        if self._bar is not None:
            self._bar.stop()

    def _left(self, wanted: float, done: float, begun: int) -> str:
        """Say how long the rest takes at the pace since work is done by as many runs as ever."""
        now = time.monotonic()
        if done > 0 and (self._first is None or begun > self._most_begun or done < self._first[1]):
            self._first = now, done
        self._most_begun = max(begun, self._most_begun)
        if self._first is None or done >= wanted:
            return ""
        seconds, made = now - self._first[0], done - self._first[1]
        enough = JUDGED_SECONDS if made >= JUDGED_SHARE * wanted else LONG_SECONDS
        if made <= 0 or seconds < enough:
            return ""
        return f"about {duration(seconds * (wanted - done) / made)} left"


def describe(queue: "Queue") -> str:
    """Say how many runs are done, under way here and elsewhere, and failed."""
    counts = {"running": begun_runs(queue), "elsewhere": queue.count("elsewhere")}
    counts["failed"] = queue.count("failed")
    words = [f"{count} {state}" for state, count in counts.items() if count]
    return ", ".join([f"{queue.count('done')} of {len(queue.entries)} runs done", *words])


def begun_runs(queue: "Queue") -> int:
    """Count the runs under way here; on a cluster there are others that wait for their turn."""
    return sum(e.state == "running" and e.work is not None for e in queue.entries.values())
