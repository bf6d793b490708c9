"""Progress with the time left, shown for work that takes more than a moment."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TimeRemainingColumn,
)

from distillmatch.files import size_shown
from distillmatch.terminal import duration, plain_column, plain_console

PATIENCE = 1.0
"""Seconds of work before anything is drawn on a terminal."""
LINE_SECONDS = 60.0
"""Without a terminal there is a line so often."""

_silent_blocks = 0


@contextmanager
def without_progress() -> Iterator[None]:
    """Show none within the block, whichever thread does the work."""
    global _silent_blocks  # noqa: PLW0603  all threads of the process are meant
    _silent_blocks += 1
    try:
        yield
    finally:
        _silent_blocks -= 1


@contextmanager
def show_progress(
    doing: str, total: int | None, in_bytes: bool = False, done: int = 0
) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes how much is done by now, and shows it.

    On a terminal that is a bar, elsewhere a line now and then. What was `done` before does not
    count for the time left.
    """
    console = plain_console(stderr=True, highlight=False)
    amount: ProgressColumn = DownloadColumn() if in_bytes else MofNCompleteColumn()
    bar = Progress(
        plain_column("{task.description}"),
        BarColumn(),
        amount,
        TimeRemainingColumn(),
        plain_column("left"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(doing, total=total, completed=done)
    begin = said_at = time.monotonic()
    before, drawn = done, False

    def update(done: int) -> None:
        nonlocal drawn, said_at
        if _silent_blocks:
            return
        now = time.monotonic()
        if not console.is_terminal:
            if now - said_at >= LINE_SECONDS:
                said_at = now
                console.print(line(done, now - begin), soft_wrap=True)
            return
        if not drawn and now - begin > PATIENCE:
            bar.start()
            drawn = True
        bar.update(task, completed=done)

    def line(done: int, seconds: float) -> str:
        shown = size_shown if in_bytes else "{:,}".format
        if total is None:
            return f"{doing}: {shown(done)}"
        words = f"{doing}: {shown(done)} of {shown(total)}"
        if done > before:
            words += f", about {duration(seconds * (total - done) / (done - before))} left"
        return words

    try:
        yield update
    finally:
        if drawn:
            bar.stop()
