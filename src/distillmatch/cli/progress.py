"""Live progress of a run, with the time left."""

import threading
import time

from rich.progress import (
    BarColumn,
    TaskProgressColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

from distillmatch.terminal import duration, plain_column, plain_console

LINE_SECONDS = 60.0
"""Without a terminal there is a line at least so often."""


class LiveProgress:
    """A bar on standard error; where that is no terminal, a line every tenth of the way or minute.

    A thread says the lines of the minutes: a single step of the work can take hours.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.console = plain_console(stderr=True, highlight=False)
        self.bar: RichProgress | None = None
        self.total = self.done = self.done_before = 0.0
        self.doing = ""
        self.tenths_said = 0
        self.began = self.said_at = time.monotonic()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._clock: threading.Thread | None = None

    def start(self, total: float, done: float = 0.0) -> None:
        """Begin to show."""
        self.total = total
        self.done = self.done_before = done
        self.tenths_said = int(10 * done / total) if total else 0
        self.began = self.said_at = time.monotonic()
        if self.console.is_terminal:
            self.bar = RichProgress(
                plain_column("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TimeElapsedColumn(),
                plain_column("left"),
                TimeRemainingColumn(elapsed_when_finished=False),
                console=self.console,
                transient=True,
            )
            self.bar.add_task(self.title, total=total, completed=round(done))
            self.bar.start()
        elif total:
            self._clock = threading.Thread(target=self._say_each_minute, daemon=True)
            self._clock.start()

    def advance(self, done: float, doing: str) -> None:
        """Add finished work and say what was being done."""
        with self._lock:
            self.done += done
            self.doing = doing
            if self.bar is not None:
                self.bar.update(
                    self.bar.task_ids[0], advance=done, description=f"{self.title}: {doing}"
                )
            elif self.done >= (self.tenths_said + 1) / 10 * self.total:
                self.tenths_said = int(10 * self.done / self.total)
                self._say()

    def stop(self) -> None:
        """Show no more."""
        if self.bar is not None:
            self.bar.stop()
        self._stopped.set()
        if self._clock is not None:
            self._clock.join()

    def _say_each_minute(self) -> None:
        while not self._stopped.wait(self.said_at + LINE_SECONDS - time.monotonic()):
            with self._lock:
                if time.monotonic() - self.said_at >= LINE_SECONDS:
                    self._say()

    def _say(self) -> None:
        """Print a line: how much is done, how long the rest takes at the pace so far, and what."""
        self.said_at = time.monotonic()
        words = [f"{self.title}: {round(100 * self.done / self.total, 1):g} % done"]
        if self.done > self.done_before:
            pace = (self.said_at - self.began) / (self.done - self.done_before)
            words.append(f"about {duration(pace * (self.total - self.done))} left")
        if self.doing:
            words.append(self.doing)
        self.console.print(", ".join(words), soft_wrap=True)
