"""Checkpoint files: safetensors with plain values as JSON, verified by a hash.

The last two are kept. A new one gets a name of its own, and the oldest is removed only once the new
one is on the disk, so that one is whole whatever happens in between.
"""

import contextlib
import hashlib
import json
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from distillmatch.errors import explain_disk_errors
from distillmatch.files import atomic_file, read_bytes
from distillmatch.runs.interruption import THREADS
from distillmatch.runs.log import RunLog
from distillmatch.runs.schema import RunCheckpoint, problems_of_form
from distillmatch.sources.walk import shown

FOLDER = "checkpoints"
FORMAT = "distillmatch checkpoint"
VERSION = 1
KEPT = 2
WRITER = f"{THREADS}checkpoint"
_DAMAGE = (SafetensorError, FileNotFoundError, ValueError, KeyError, TypeError)
"""Errors of reading a file that is damaged or gone."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The content of a file: plain values, and tensors by name."""

    values: dict[str, Any]
    tensors: dict[str, Tensor]


class AbandonedError(Exception):
    """A checkpoint was not written, because its run has ended."""


class Checkpoints:
    """The checkpoint files in the folder of a run."""

    def __init__(self, folder: Path, schema: type[BaseModel] = RunCheckpoint) -> None:
        self.folder = folder / FOLDER
        self.schema = schema
        self._good: list[Path] = []
        self._abandoned = False

    def abandon(self) -> None:
        """Cancel the write of another thread: the folder may soon belong to another process."""
        self._abandoned = True

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then remove all but the last two."""
        number = max((int(path.stem) for path in self._files()), default=0) + 1
        path = self.folder / f"{number:08d}.safetensors"
        content = encode(checkpoint)
        with atomic_file(path, "writing a checkpoint", self._refuse_if_abandoned) as file:
            file.write(content)
        _sync(self.folder)
        self._good = [*self._good, path][-KEPT:]
        self._refuse_if_abandoned()
        for old in self._files():
            if old not in self._good:
                old.unlink(missing_ok=True)
        return path

    def _refuse_if_abandoned(self) -> None:
        if self._abandoned:
            raise AbandonedError

    def load(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the last whole checkpoint, and what is wrong with those after it.

        A file that may not be read could well be whole: it raises `DiskError`.
        """
        problems: list[str] = []
        for path in sorted(self._files(), reverse=True):
            with explain_disk_errors("reading a checkpoint", path):
                try:
                    found = decode(path)
                    self._check(found)
                except _DAMAGE as error:
                    reason = " ".join(str(error).split())[:120] or type(error).__name__
                    problems.append(f"{shown(path)}: not a whole checkpoint ({reason})")
                    continue
            self._good = [path]
            return found, problems
        return None, problems

    def _check(self, checkpoint: Checkpoint) -> None:
        """Raise `ValueError` for a checkpoint of another kind, or one with missing parts."""
        for problem in problems_of_form(checkpoint.values, self.schema):
            raise ValueError(problem)
        stored = checkpoint.tensors.get("coreset")
        counts = checkpoint.values["engine"]["coreset"]
        if stored is None or stored.ndim != 4 or len(stored) != sum(counts):
            raise ValueError("the number of stored images is wrong")

    def clear(self) -> None:
        """Remove all checkpoints."""
        self._good = []
        for path in self._files():
            path.unlink(missing_ok=True)
        self.sweep()
        with contextlib.suppress(OSError):  # there is none, or something else in it
            self.folder.rmdir()

    def sweep(self) -> None:
        """Remove what a process left that was killed while it wrote."""
        for path in self.folder.glob(".*.safetensors.*.part"):
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        with explain_disk_errors("looking for checkpoints", self.folder):
            try:
                paths = list(self.folder.iterdir())
            except (FileNotFoundError, NotADirectoryError):
                return []
        return [path for path in paths if re.fullmatch(r"\d{8}\.safetensors", path.name)]


class CheckpointWriter:
    """Within its block, writes checkpoints in a thread beside the training, one after another.

    A checkpoint must not change once it is given. The outcome of a write is raised or noted in the
    log by `look` and `settle`, in the thread of the run: a log has one writer.
    """

    def __init__(self, checkpoints: Checkpoints, log: RunLog) -> None:
        self.checkpoints, self.log = checkpoints, log
        self._thread: threading.Thread | None = None
        self._place = ""
        self._outcome: Path | BaseException | None = None

    def begin(self, checkpoint: Checkpoint, place: str) -> None:
        """Begin to write, once the last write is done; `place` says how far the run is."""
        self.settle()
        self._place = place
        # A daemon, for a disk that hangs must not keep the process.
        thread = threading.Thread(target=self._write, args=(checkpoint,), name=WRITER, daemon=True)
        self._thread = thread  # before it starts: a signal may come in between
        thread.start()

    def look(self) -> None:
        """Raise the error of the last write, if it has ended."""
        if self._outcome is not None:
            self.settle()

    def settle(self) -> None:
        """Wait for the last write, and raise its error."""
        if self._thread is None:
            return
        self._thread.join()
        outcome, self._outcome, self._thread = self._outcome, None, None
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is not None:
            self.log.note("checkpoint", file=outcome.name, place=self._place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._thread is None or self._thread.ident is None:
            return
        if isinstance(error, KeyboardInterrupt):
            # By a second signal: a run that stops where it can be resumed has settled.
            self.checkpoints.abandon()
            return
        # Otherwise the run is finished and its result written, or it ends by another error.
        with contextlib.suppress(Exception):
            self.settle()

    def _write(self, checkpoint: Checkpoint) -> None:
        try:
            self._outcome = self.checkpoints.save(checkpoint)
        except BaseException as error:  # the thread of the run raises it, whatever it is
            self._outcome = error


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the content of a checkpoint's file."""
    text, tensors = json.dumps(checkpoint.values), checkpoint.tensors
    header = {"format": FORMAT, "version": str(VERSION), "values": text}
    return to_safetensors(tensors, {**header, "checksum": checksum(text, tensors)})


def decode(path: Path) -> Checkpoint:
    """Read a checkpoint; raise `ValueError` for another file or a damaged one."""
    header, tensors = read_safetensors(path)
    if (header.get("format"), header.get("version")) != (FORMAT, str(VERSION)):
        raise ValueError(f"expected {FORMAT} version {VERSION}")
    if checksum(header["values"], tensors) != header["checksum"]:
        raise ValueError("its checksum differs")
    return Checkpoint(json.loads(header["values"]), tensors)


def read_safetensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a file, which may be removed while they are in use.

    `safe_open` would refuse names that are not UTF-8, and call every file missing that it may not
    open.
    """
    content = read_bytes(path)
    tensors = from_safetensors(content)
    # The length of the header, then the header in JSON; both were checked just now.
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    return header.get("__metadata__") or {}, tensors


def checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """Hash the plain values and the name, type, shape and bytes of every tensor."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        # A row of one element may have any stride, and `view` takes those of 1 alone.
        row = tensor.reshape(-1).clone(memory_format=torch.contiguous_format)
        digest.update(row.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sync(folder: Path) -> None:
    """Write the folder's list of names to the disk too, where the system can."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):
        os.fsync(descriptor)
    os.close(descriptor)
