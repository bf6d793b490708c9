"""Write files atomically, and read them with care."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EINVAL
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import from_json

from distillmatch.errors import DistillMatchError, explain_disk_errors

# Reading it changes it for a moment, which other threads would see: so this is done once.
UMASK = os.umask(0)
os.umask(UMASK)


def user_cache() -> Path | None:
    """Return the folder for what can be made again, or None if there is no home folder."""
    # An empty or relative XDG_CACHE_HOME is to be ignored, says its specification.
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "distillmatch"
    try:
        return Path.home() / ".cache" / "distillmatch"
    except RuntimeError:
        return None


@contextmanager
def atomic_file(path: Path, doing: str) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` that takes its name only when the block succeeds."""
    with explain_disk_errors(doing, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=".part", dir=path.parent
        )
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o666 & ~UMASK)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_atomically(path: Path, content: bytes | str, doing: str = "writing it") -> None:
    """Write a whole small file at once."""
    data = content.encode() if isinstance(content, str) else content
    with atomic_file(path, doing) as file:
        file.write(data)


def check_writable(folder: Path, doing: str) -> None:
    """Make a folder and refuse it if nothing can be written there, before work is done for it."""
    with explain_disk_errors(doing, folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def size_shown(size: int) -> str:
    """Return a number of bytes with a unit."""
    for unit, number in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= number:
            return f"{size / number:.1f} {unit}"
    return f"{size} byte{'' if size == 1 else 's'}"


def open_file(path: Path) -> BufferedReader:
    """Open a file to read.

    Raises `OSError` for a pipe or a device, which may never end, and for an impossible name.
    """
    if not path.is_dir() and path.exists() and not path.is_file():
        raise OSError(EINVAL, "expected a file, found a pipe or a device", str(path))
    try:
        return path.open("rb")
    except ValueError:  # a zero byte or a lone surrogate
        raise OSError(EINVAL, "no file can have this name", str(path)) from None


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; a pipe or device raises `OSError`."""
    with open_file(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """Return the content of a text file; a pipe or device raises `OSError`."""
    return read_bytes(path).decode()


def read_record(
    path: Path, what: str, form: str, version: int | tuple[int, ...], error: type[DistillMatchError]
) -> dict[str, Any]:
    """Read a JSON object that names its format and version; raise `error` if it is another.

    `what` is the thing as a person calls it; of several versions any will do.
    """
    versions = version if isinstance(version, tuple) else (version,)
    try:
        record = from_json(read_text(path))
    except OSError as problem:
        raise error(f"{path}: {problem.strerror or problem}") from None
    except ValueError:
        raise error(f"{path}: expected a {what} in JSON, found something else") from None
    if not isinstance(record, dict) or record.get("format") != form:
        raise error(f"{path}: expected a {what}, found other JSON")
    if record.get("version") not in versions:
        wanted = " or ".join(map(str, versions))
        raise error(f"{path}: expected version {wanted} of a {what}, found {record.get('version')}")
    return record
