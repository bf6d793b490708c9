"""How a run tells how far it is."""

from typing import Protocol


class Progress(Protocol):
    """Told of finished work, in units of which `start` gives the total."""

    def start(self, total: float, done: float = 0.0) -> None:
        """Begin to show; of a continued run, `done` is finished already."""

    def advance(self, done: float, doing: str) -> None:
        """Add finished work and say what was being done."""

    def stop(self) -> None:
        """Show no more."""


class NoProgress:
    """Says nothing."""

    def start(self, total: float, done: float = 0.0) -> None:
        """Ignore the total."""

    def advance(self, done: float, doing: str) -> None:
        """Ignore the step."""

    def stop(self) -> None:
        """Have nothing to end."""
