"""Errors that a user can act on: each is one sentence and ends the command with exit code 2."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from errno import EDQUOT, ENOSPC
from pathlib import Path


class DistillMatchError(Exception):
    """Input cannot be used; the message says what was expected, what came, and where."""


class ConfigError(DistillMatchError, ValueError):
    """A configuration has an unknown key, a wrong type or an impossible combination."""


class SourceError(DistillMatchError):
    """A source has no usable images."""


class DiskError(DistillMatchError):
    """A file could not be written or read, for lack of space or permission."""


class StreamError(DistillMatchError, ValueError):
    """A stream cannot be built from this source, or a saved one does not fit it."""


class RunFolderError(DistillMatchError):
    """A folder holds another run, or none where one was expected."""


class LockedError(RunFolderError):
    """Another process is using the folder."""


class ResultError(DistillMatchError):
    """A file is not the result of a run, or not one that fits this use."""


class SnapshotError(DistillMatchError):
    """A snapshot does not fit the method that it should restore."""


class TrainingError(DistillMatchError):
    """A training cannot continue, for example because its loss is not a number."""


class OutOfMemoryError(DistillMatchError):
    """The memory of the machine or its GPU is too small."""


class LearnerError(DistillMatchError, ValueError):
    """A learner got input it cannot use, or a folder holds no readable learner."""


def kind_of(given: object) -> str:
    """Return the kind of a value for a message: `a list`, `an int`, `None`."""
    name = type(given).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    return "None" if given is None else f"{article} {name}"


def first_of(sentences: Sequence[str]) -> str:
    """Return the first of some sentences, with the number of the others."""
    return sentences[0] + (f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else "")


def did_you_mean(word: str, known: Iterable[object]) -> str:
    """Return ` (did you mean '...'?)` with the known word that is nearest, or nothing."""
    close = get_close_matches(word, [str(one) for one in known], n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


@contextmanager
def explain_disk_errors(doing: str, where: Path) -> Iterator[None]:
    """Turn an error of the disk while `doing` something into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (ENOSPC, EDQUOT):
            raise DiskError(f"no space left on the disk of {where} while {doing}") from error
        reason = error.strerror or str(error)
        raise DiskError(f"{where}: {reason} while {doing}") from error
