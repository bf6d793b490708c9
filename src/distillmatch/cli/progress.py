"""Live progress of a run, with the time left."""

import time

from rich.progress import (
    BarColumn,
    TaskProgressColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

from distillmatch.terminal import plain_column, plain_console


class LiveProgress:
    """A bar on standard error; where that is no terminal, a line every tenth of the way."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.console = plain_console(stderr=True, highlight=False)
        self.bar: RichProgress | None = None
        self.total = self.done = self.done_before = 0.0
        self.said = 0
        self.began = time.monotonic()

    def start(self, total: float, done: float = 0.0) -> None:
        """Begin to show."""
        self.total = total
        self.done = self.done_before = done
        self.said = int(10 * done / total) if total else 0
        self.began = time.monotonic()
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

    def advance(self, done: float, doing: str) -> None:
        """Add finished work and say what was being done."""
        self.done += done
        if self.bar is not None:
            self.bar.update(
                self.bar.task_ids[0], advance=done, description=f"{self.title}: {doing}"
            )
        elif self.done >= (self.said + 1) / 10 * self.total:
            self.said = int(10 * self.done / self.total)
            pace = (time.monotonic() - self.began) / (self.done - self.done_before)
            left = pace * (self.total - self.done)
            self.console.print(
                f"{self.title}: {10 * self.said} % done, about {left:.0f} s left, {doing}",
                soft_wrap=True,
            )

    def stop(self) -> None:
        """Show no more."""
        if self.bar is not None:
            self.bar.stop()
