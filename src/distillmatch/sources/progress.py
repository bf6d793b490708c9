"""Progress with the time left, shown on a terminal for work that takes more than a moment."""

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

from distillmatch.terminal import plain_column, plain_console

PATIENCE = 1.0
"""Seconds of work before anything is drawn."""


@contextmanager
def show_progress(
    doing: str, total: int | None, in_bytes: bool = False, done: int = 0
) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes how much is done by now, and draws it where a person looks on.

    What was `done` before does not count for the time left.
    """
    console = plain_console(stderr=True)
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
    begin = time.monotonic()
    drawn = False

    def update(done: int) -> None:
        nonlocal drawn
        if not drawn and time.monotonic() - begin > PATIENCE:
            bar.start()
            drawn = True
        bar.update(task, completed=done)

    try:
        yield update
    finally:
        if drawn:
            bar.stop()
