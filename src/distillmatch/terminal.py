"""Printing for people: text as it stands, whatever a user has called a class, a run or a folder."""

import io
import os
import sys

from rich.console import Console
from rich.progress import TextColumn


class _Console(Console):
    """A console whose reader may go away, as `head` does, while there is work to be done."""

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


def plain_column(text: str) -> TextColumn:
    """Return a column of a progress bar that shows a description as it stands."""
    return TextColumn(text, markup=False)


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
