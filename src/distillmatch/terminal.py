"""Printing for people: the one place from which text reaches the terminal.

Names of classes, runs and folders, and what files say, may hold anything: control characters, by
which a terminal could be told what to do, are shown as what they are.
"""

import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from distillmatch.files import size_shown

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and newline, and those that turn the direction of writing around."""


def clean(text: str) -> str:
    """Return text whose control characters are written out, as `\\x1b`."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def tell(sentence: str) -> None:
    """Say something to the user on standard error."""
    say(f"distillmatch: {sentence}", sys.stderr)


def say(text: str, file: TextIO | None = None) -> None:
    """Print text, on standard output unless another file is given."""
    print(clean(text), file=file or sys.stdout, flush=True)


class _Console(Console):
    """A console whose reader may go away, as `head` does, while there is work to be done."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return text to be rendered, cleaned; everything that is given as text comes here."""
        return super().render_str(clean(text), **options)

    def on_broken_pipe(self) -> None:
        """Go on in silence where it shows progress; on standard output end the command."""
        if not self.stderr:
            super().on_broken_pipe()
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


def plain_console(stderr: bool = False, highlight: bool = True, soft_wrap: bool = False) -> Console:
    """Return a console to which `[red]` and `:cat:` in a text or table are letters like others."""
    return _Console(
        stderr=stderr, highlight=highlight, soft_wrap=soft_wrap, markup=False, emoji=False
    )


class _PlainColumn(TextColumn):
    """A column whose text is cleaned."""

    def render(self, task: Task) -> Text:
        """Return the text of a task."""
        return Text(clean(self.text_format.format(task=task)), style=self.style)


def plain_column(text: str) -> TextColumn:
    """Return a column of a progress bar that shows a description as it stands."""
    return _PlainColumn(text, markup=False)


def replace_what_cannot_be_encoded() -> None:
    """Print a question mark for a letter that the terminal's encoding lacks, and go on."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


PATIENCE = 1.0
"""Seconds of work before a bar is drawn on a terminal."""
LINE_SECONDS = 60.0
"""Without a terminal, seconds between two lines."""

_silent_blocks = 0


@contextmanager
def without_progress() -> Iterator[None]:
    """Show no progress within the block, whichever thread does the work."""
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
    """Yield a function that takes how much is done so far, and shows it with the time left.

    On a terminal it draws a bar, elsewhere it prints a line a minute. What was `done` before does
    not count for the time left.
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
