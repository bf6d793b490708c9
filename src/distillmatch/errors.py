"""Errors that a user can act on: each is one sentence, and ends the command with exit code 2."""

from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from pathlib import Path


class DistillMatchError(Exception):
    """What the user gave cannot be used; the message says what was expected, what came, where."""


class ConfigError(DistillMatchError, ValueError):
    """A run was described with an unknown key, a wrong type or an impossible combination."""


class SourceError(DistillMatchError):
    """Images could not be had from where the user pointed."""


class DiskError(DistillMatchError):
    """A file could not be written or read, for want of space or permission."""


class StreamError(DistillMatchError, ValueError):
    """The asked stream cannot be made from this source, or a saved one does not fit it."""


class RunFolderError(DistillMatchError):
    """A folder holds another run, or none where one was expected."""


class LockedError(RunFolderError):
    """Another process works in the folder."""


class ResultError(DistillMatchError):
    """A file is no result of a run, or not one that can be used so."""


class SnapshotError(DistillMatchError):
    """A snapshot does not fit the method it should be put into."""


class TrainingError(DistillMatchError):
    """A training could not go on, such as when its loss stopped being a number."""


class OutOfMemoryError(DistillMatchError):
    """The memory of the machine or its GPU does not suffice for what was asked."""


class LearnerError(DistillMatchError, ValueError):
    """A learner was given what it cannot use, or a folder holds no learner that can be read."""


def kind_of(given: object) -> str:
    """Say what came where something else was expected: `a list`, `an int`, `None`."""
    name = type(given).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    return "None" if given is None else f"{article} {name}"


@contextmanager
def explain_disk_errors(doing: str, where: Path) -> Iterator[None]:
    """Turn a full or unwritable disk met while `doing` something into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (ENOSPC, EDQUOT):
            raise DiskError(f"no space left on the disk of {where} while {doing}") from error
        reason = error.strerror or str(error)
        raise DiskError(f"{where}: {reason} while {doing}") from error
