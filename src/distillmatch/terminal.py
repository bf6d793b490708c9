"""Everything that people read on a terminal: text, tables and progress.

Names of classes, runs and folders, and what files hold, may contain anything. Control characters,
which could steer the terminal, are written out before they are printed.
"""

import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from distillmatch.files import size_shown

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters except tab and newline, and those that reverse the direction of writing."""


def clean(text: str) -> str:
    """Return text with its control characters written out, as `\\x1b`."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def safe_cell(value: object) -> object:
    """Return a cell of CSV, its text quoted where a spreadsheet would take it for a formula."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


def tell(sentence: str) -> None:
    """Print a sentence for the user on standard error."""
    say(f"distillmatch: {sentence}", sys.stderr)


def say(text: str, file: TextIO | None = None) -> None:
    """Print text, on standard output unless another file is given."""
    print(clean(text), file=file or sys.stdout, flush=True)


class _Console(Console):
    """A console that cleans text and keeps working when its reader goes away, as `head` does."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text to render, cleaned before it is laid out."""
        return super().render_str(clean(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Return what is printed, cleaned; all of it passes here."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=clean(segment.text))

    def on_broken_pipe(self) -> None:
        """Stay silent from now on if this shows progress; otherwise end the command."""
        if not self.stderr:
            super().on_broken_pipe()
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


def plain_console(stderr: bool = False) -> Console:
    """Return a console that prints `[red]` and `:cat:` as they are."""
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def show(*tables: RenderableType) -> None:
    """Print tables on standard output."""
    for table in tables:
        plain_console().print(table)


def make_table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], fold: bool = True, **style: Any
) -> Table:
    """Return a table; a head that begins with `>` is that of a column of numbers."""
    table = Table(**style)
    for head in heads:
        justify: Any = "right" if head.startswith(">") else "left"
        overflow: Any = "fold" if fold else "ellipsis"
        name = head.removeprefix(">")
        table.add_column(name, justify=justify, overflow=overflow, no_wrap=not fold)
    for row in rows:
        table.add_row(*map(str, row))
    return table


def replace_what_cannot_be_encoded() -> None:
    """Print a question mark for each character that the terminal's encoding lacks."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")


def duration(seconds: float) -> str:
    """Return a time in the unit that people would use."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


PATIENCE = 1.0
"""Seconds of reading or downloading before its bar is drawn."""
LINE_SECONDS = 60.0
"""Without a terminal, a line is printed at least this often."""
JUDGED_SHARE, JUDGED_SECONDS, LONG_SECONDS = 0.02, 5.0, 60.0
"""The time left is estimated from this share of the work and this many seconds of it; in very long
work, from `LONG_SECONDS` alone.
"""

_silent_blocks = 0


@contextmanager
def without_progress() -> Iterator[None]:
    """Show no progress of reading or downloading within the block, in any thread."""
    global _silent_blocks  # noqa: PLW0603  all threads of the process are meant
    _silent_blocks += 1
    try:
        yield
    finally:
        _silent_blocks -= 1


class LiveProgress:
    """Shows on standard error how far some work is, and the time left.

    On a terminal it draws a bar, once the work has lasted for `patience` seconds. Elsewhere it
    prints a line when a minute has passed, and for shares of a whole at every tenth too.
    """

    def __init__(
        self, title: str, unit: Literal["share", "count", "bytes"] = "share", patience: float = 0.0
    ) -> None:
        self.title, self.unit, self.patience = title, unit, patience
        self.console = plain_console(stderr=True)
        self.total: float | None = None
        self.done = self.found = 0.0
        self.doing = ""
        self._begun = self._printed_at = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, total: float | None, done: float = 0.0) -> None:
        """Begin to show; work that was `done` before does not count for the time left."""
        self.total, self.done, self.found = total, done, done
        self._begun = self._printed_at = time.monotonic()
        if self.console.is_terminal:
            texts = ("{task.description}", "{task.fields[amount]}", "{task.fields[left]}")
            name, amount, left = (TextColumn(text, markup=False) for text in texts)
            columns = (name, BarColumn(), amount, TimeElapsedColumn(), left)
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._bar.add_task("", amount="", left="")
            self._draw()

    def advance(self, amount: float, doing: str = "") -> None:
        """Add finished work, and say what is being done."""
        self.update(self.done + amount, doing)

    def update(self, done: float, doing: str = "") -> None:
        """Set how much is done, and say what is being done."""
        before, self.done, self.doing = self.done, done, doing or self.doing
        if self._bar is not None:
            self._draw()
        elif time.monotonic() - self._printed_at >= LINE_SECONDS or self.is_due(before):
            self._printed_at = time.monotonic()
            words = filter(None, (self.amount(), self.left(), self.doing))
            if not _silent_blocks:
                self.console.print(f"{self.title}: {', '.join(words)}", soft_wrap=True)

    def tell(self, sentence: str) -> None:
        """Print a sentence, above the bar."""
        self.console.print(f"distillmatch: {sentence}", soft_wrap=True)

    def stop(self) -> None:
        """End."""
        if self._bar is not None:
            self._bar.stop()

    def left(self) -> str:
        """Return how long the rest takes at the pace so far, once that can be estimated."""
        seconds, made = time.monotonic() - self._begun, self.done - self.found
        if not self.total or made <= 0 or self.done >= self.total:
            return ""
        if seconds < (JUDGED_SECONDS if made >= JUDGED_SHARE * self.total else LONG_SECONDS):
            return ""
        return f"about {duration(seconds * (self.total - self.done) / made)} left"

    def is_due(self, before: float) -> bool:
        """Return whether a line is due before its minute, now that more is done than `before`."""
        if self.unit != "share" or not self.total:
            return False
        return int(10 * self.done / self.total) > int(10 * before / self.total)

    def amount(self) -> str:
        """Return how much is done, in the unit of the work."""
        if self.unit == "share":
            share = self.done / self.total if self.total else 1.0
            return f"{round(100 * share, 0 if share >= 0.01 else 1):g} % done"
        shown = size_shown if self.unit == "bytes" else "{:,}".format
        done = shown(int(self.done))
        return done if self.total is None else f"{done} of {shown(int(self.total))}"

    def _draw(self) -> None:
        if _silent_blocks or time.monotonic() - self._begun < self.patience:
            return
        assert self._bar is not None
        self._bar.start()
        self._bar.update(
            self._bar.task_ids[0],
            total=self.total,
            completed=self.done,
            description=clean(": ".join(filter(None, (self.title, self.doing)))),
            amount=self.amount(),
            left=self.left(),
        )


@contextmanager
def show_progress(
    doing: str, total: int | None, in_bytes: bool = False, done: int = 0
) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes how much of some reading is done, and shows it."""
    with LiveProgress(doing, "bytes" if in_bytes else "count", PATIENCE) as progress:
        progress.start(total, done)
        yield progress.update


@contextmanager
def shown_progress(given: Any, verbose: bool, title: str) -> Iterator[Any]:
    """Yield the progress to tell: the one given, one on the terminal if `verbose`, or none.

    Without any, nothing is shown within the block, of reading and downloading either.
    """
    if given is not None:
        yield given
    elif verbose:
        with LiveProgress(title) as progress:
            yield progress
    else:
        with without_progress():
            yield None
